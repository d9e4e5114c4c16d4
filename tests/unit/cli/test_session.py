"""A command that cleans up after itself, ended by signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.cli.session import run_tidily


@contextmanager
def inherited(number: signal.Signals, disposition: signal.Handlers) -> Iterator[None]:
    """The process as its parent could have started it."""
    before = signal.signal(number, disposition)
    try:
        yield
    finally:
        signal.signal(number, before)


def outcome(number: signal.Signals) -> str:
    """What becomes of a command that gets a signal."""

    async def command() -> str:
        os.kill(os.getpid(), number)
        for _ in range(10):  # for the event loop to act on it
            await asyncio.sleep(0)
        return "goes on"

    try:
        return run_tidily(command())
    except KeyboardInterrupt:
        return "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_as_an_interrupt(number: signal.Signals) -> None:
    with inherited(number, signal.SIG_DFL):
        assert outcome(number) == "interrupted"


def test_a_hangup_that_nohup_ignores_does_not_end_it() -> None:
    with inherited(signal.SIGHUP, signal.SIG_IGN):
        assert outcome(signal.SIGHUP) == "goes on"
