"""A session: the engine on the store that the settings name, open for as long as a command needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.app import Holdfast, scrubbed
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.settings import Settings

T = TypeVar("T")


def in_session(settings: Settings, work: Callable[[Holdfast], Awaitable[T]], *, may_create: bool = False) -> T:
    """Do something with the engine, and close it whatever happens."""

    async def session() -> T:
        async with opened(settings, may_create=may_create) as hf:
            return await work(hf)

    return asyncio.run(session())


@asynccontextmanager
async def opened(settings: Settings, *, may_create: bool = False, may_migrate: bool = False) -> AsyncIterator[Holdfast]:
    """The engine on an open store. A store that does not exist is made only if the command is allowed to."""
    hf = engine_for(settings)
    if not may_create:
        check_exists(hf)
    await hf.store.open(migrate=may_migrate)
    try:
        async with hf:
            yield hf
    finally:
        await hf.store.close()


def engine_for(settings: Settings) -> Holdfast:
    """The engine on the store of the settings; nothing is opened yet."""
    hf = Holdfast(settings.url)
    if hf.url.partition(":")[0] == "memory":
        raise Refusal(
            f"{hf.url}: a memory store lives inside one process, so there is nothing to see from here; "
            "use a URL such as sqlite:///holdfast.db"
        )
    return hf


def check_exists(hf: Holdfast) -> None:
    """Refuse a store that was never used: a typing mistake in a URL must not make a database."""
    if hf.store.schema().current == 0:
        raise Refusal(
            f"there is no holdfast database at {scrubbed(hf.url)}; "
            "name another with --url or HOLDFAST_URL, or make this one with `holdfast migrate`",
            ExitCode.UNREACHABLE,
        )
