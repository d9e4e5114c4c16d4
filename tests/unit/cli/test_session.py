"""A command that cleans up after itself when signals end it."""

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
    """Run with a signal disposition as inherited from a parent process."""
    before = signal.signal(number, disposition)
    try:
        yield
    finally:
        signal.signal(number, before)


def outcome(number: signal.Signals) -> str:
    """Return how a command ends that gets a signal."""

    async def command() -> str:
        os.kill(os.getpid(), number)
        for _ in range(10):  # lets the event loop handle the signal
            await asyncio.sleep(0)
        return "goes on"

    try:
        return run_tidily(command())
    except KeyboardInterrupt:
        return "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_like_an_interrupt(number: signal.Signals) -> None:
    with inherited(number, signal.SIG_DFL):
        assert outcome(number) == "interrupted"


def test_a_hangup_that_nohup_ignores_does_not_end_a_command() -> None:
    with inherited(signal.SIGHUP, signal.SIG_IGN):
        assert outcome(signal.SIGHUP) == "goes on"
