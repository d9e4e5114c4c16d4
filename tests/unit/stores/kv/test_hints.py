"""Hints on the event loop: thousands at once leave room for the signals of the process."""

from __future__ import annotations

import asyncio
import os
import signal

from holdfast.core.news import Hint
from holdfast.stores.kv.store import KvHints

HINTS = 5_000
"""More than the socket holds by which a loop is woken from other threads and by signals."""


async def test_a_signal_is_heard_although_thousands_of_hints_arrive_at_once() -> None:
    """After a process was stopped for a while, the loop reads all hints that came meanwhile in one round."""
    hints, heard, is_told = KvHints(), list[Hint](), asyncio.Event()
    loop = asyncio.get_running_loop()
    stop = hints.add(heard.append)
    loop.add_signal_handler(signal.SIGUSR1, is_told.set)
    try:
        for _ in range(HINTS):
            hints.receive(b"")
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(heard) < HINTS:
            await asyncio.sleep(0)
        for _ in range(3):  # the loop looks for signals once in each round
            await asyncio.sleep(0)
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
        stop()

    assert is_told.is_set()


async def test_a_listener_of_another_loop_gets_hints_there() -> None:
    hints, here = KvHints(), asyncio.get_running_loop()
    heard: asyncio.Future[Hint] = here.create_future()
    stop = hints.add(heard.set_result)

    await asyncio.to_thread(hints.receive, b"")

    assert (await heard).is_foreign
    stop()
