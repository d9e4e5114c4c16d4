"""A session: the engine on the store that the settings name, open while a command runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from holdfast.app import Holdfast, session_of
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.settings import Settings
from holdfast.config.secret import scrubbed

T = TypeVar("T")


def in_session(settings: Settings, work: Callable[[Holdfast], Awaitable[T]], *, may_create: bool = False) -> T:
    """Run `work` with an open engine, and close the engine in any case."""

    async def session() -> T:
        async with opened(settings, may_create=may_create) as hf:
            if not may_create:
                await session_of(hf).open()
            return await work(hf)

    return asyncio.run(session())


def run_tidily(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that cleans up after itself, and cancel it on SIGTERM or SIGHUP so that it can."""

    async def performance() -> T:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # `nohup` has set it to be ignored
            with suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(performance())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@asynccontextmanager
async def opened(settings: Settings, *, may_create: bool = False) -> AsyncIterator[Holdfast]:
    """Yield an engine after a check of its store. Only `may_create` permits a store that does not exist yet.

    Even then the store is created at the first use, so that a refused command leaves nothing behind.
    """
    hf = engine_for(settings)
    if not may_create:
        check_exists(hf)
    try:
        yield hf
    finally:
        await hf.close()


def engine_for(settings: Settings) -> Holdfast:
    """Return an engine on the store of the settings, without opening it."""
    hf = Holdfast(settings.url)
    if session_of(hf).url.partition(":")[0] == "memory":
        raise Refusal(
            f"{session_of(hf).url}: a memory store exists only inside its own process, so other processes cannot see "
            "it; use a URL such as sqlite:///holdfast.db"
        )
    return hf


def check_exists(hf: Holdfast) -> None:
    """Refuse a store that was never used: a typo in a URL must not create a database."""
    if session_of(hf).store.schema().current == 0:
        raise Refusal(
            f"there is no holdfast database at {scrubbed(session_of(hf).url)}; "
            "name another with --url or HOLDFAST_URL, or create this one with `holdfast migrate`",
            ExitCode.UNREACHABLE,
        )
