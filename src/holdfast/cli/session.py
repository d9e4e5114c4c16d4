"""A session: the engine on the store that the settings name, open for as long as a command needs it."""

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
from holdfast.stores import schema_number

T = TypeVar("T")


def in_session(settings: Settings, work: Callable[[Holdfast], Awaitable[T]], *, may_create: bool = False) -> T:
    """Do something with the engine, and close it whatever happens."""

    async def session() -> T:
        async with opened(settings, may_create=may_create) as hf:
            if not may_create:
                await session_of(hf).open()
            return await work(hf)

    return asyncio.run(session())


def run_tidily(work: Coroutine[Any, Any, T]) -> T:
    """Do something that leaves nothing behind, also when somebody ends it from outside."""

    async def performance() -> T:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # `nohup` wants it so
            with suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(performance())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@asynccontextmanager
async def opened(settings: Settings, *, may_create: bool = False) -> AsyncIterator[Holdfast]:
    """The engine on a store that is in order. One that does not exist is made only if the command is allowed to.

    Even then nothing is made before the first use, so that a command that is refused leaves nothing behind.
    """
    hf = engine_for(settings)
    if not may_create:
        check_exists(hf)
    check_schema(hf)
    try:
        yield hf
    finally:
        await hf.close()


def engine_for(settings: Settings) -> Holdfast:
    """The engine on the store of the settings; nothing is opened yet."""
    hf = Holdfast(settings.url)
    if session_of(hf).url.partition(":")[0] == "memory":
        raise Refusal(
            f"{session_of(hf).url}: a memory store lives inside one process, so there is nothing to see from here; "
            "use a URL such as sqlite:///holdfast.db"
        )
    return hf


def check_exists(hf: Holdfast) -> None:
    """Refuse a store that was never used: a typing mistake in a URL must not make a database."""
    if session_of(hf).store.schema().current == 0:
        raise Refusal(
            f"there is no holdfast database at {scrubbed(session_of(hf).url)}; "
            "name another with --url or HOLDFAST_URL, or make this one with `holdfast migrate`",
            ExitCode.UNREACHABLE,
        )


def check_schema(hf: Holdfast) -> None:
    """Refuse a store that another version of holdfast made."""
    schema_number.check(session_of(hf).store.schema(), scrubbed(session_of(hf).url))
