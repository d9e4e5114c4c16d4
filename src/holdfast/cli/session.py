"""A session: the engine on the store that the settings name, open while a command runs; its actor and its runs."""

from __future__ import annotations

import asyncio
import gc
import getpass
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar

from holdfast.app import Holdfast, session_of
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.option import Settings
from holdfast.cli.output import cleaned
from holdfast.cli.summary import run_words
from holdfast.config.secret import scrubbed
from holdfast.core.clock import moment
from holdfast.core.errors import RunNotFound
from holdfast.core.questions import Query
from holdfast.engine.info import RunInfo

T = TypeVar("T")

LOGIN_LIMIT = 100

_CANDIDATES = 10
_SWITCH_SECONDS = 0.0005
_GC_THRESHOLDS = (20_000, 20, 20)


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
    if is_in_memory(hf):
        raise Refusal(
            f"{session_of(hf).url}: a memory store exists only inside its own process, so other processes cannot see "
            "it; use a URL such as sqlite:///holdfast.db"
        )
    return hf


def is_in_memory(hf: Holdfast) -> bool:
    """Return True if the store of an engine lives in its process, where no other process can see it."""
    return session_of(hf).url.partition(":")[0] == "memory"


def check_exists(hf: Holdfast) -> None:
    """Refuse a store that was never used: a typo in a URL must not create a database."""
    if session_of(hf).store.schema().current == 0:
        raise Refusal(
            f"there is no holdfast database at {scrubbed(session_of(hf).url)}; "
            "name another with --url or HOLDFAST_URL, or create this one with `holdfast migrate`",
            ExitCode.UNREACHABLE,
        )


async def find_run(hf: Holdfast, name: str) -> str:
    """Return the id of the run with this id, this beginning of an id, or this `key:…`.

    Raises `RunNotFound`, or a `Refusal` that lists the candidates.
    """
    if name.startswith("key:"):
        details = await session_of(hf).store.get(key=name[4:])
        if details is None:
            raise RunNotFound(f"no run has the key {name[4:]!r}; `holdfast ls` lists the runs")
        return details.run.id
    if not name:
        raise Refusal("the name of the run is empty; give its id, the beginning of its id, or key:…")
    if await session_of(hf).store.get(name) is not None:
        return name
    # Read one more than is shown, to know whether there are more.
    matching = await session_of(hf).store.list(Query(id_prefix=name, limit=_CANDIDATES + 1))
    if not matching:
        raise RunNotFound(f"there is no run {name!r}; `holdfast ls` lists the runs")
    if len(matching) == 1:
        return matching[0].run.id
    now = await store_now(hf)
    lines = [run_words(RunInfo.of(details), now) for details in matching[:_CANDIDATES]]
    if len(matching) > _CANDIDATES:
        lines.append("… and more")
    raise Refusal("\n".join([f"several run ids begin with {cleaned(name)!r}; give more of the id:", *lines]))


async def store_now(hf: Holdfast) -> datetime:
    """Return the time of the store, which decides when runs are due."""
    return moment(await session_of(hf).store.now())


def actor() -> str:
    """Return `cli:` and the login of the user who runs the command, or the user id if there is no login."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may have neither a passwd entry nor a variable
        login = f"uid-{os.getuid()}"
    # The login may come from an environment variable with any content, which must not make the command fail.
    return "cli:" + login.encode(errors="backslashreplace").decode()[:LOGIN_LIMIT]


def tune_for_runs() -> None:
    """Tune the interpreter for many runs at once on the event loop, with steps in threads beside it."""
    # Steps in threads would otherwise starve beside a busy event loop.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Hundreds of runs create many short-lived objects; with the default, a collection would start every 700 of them.
    gc.set_threshold(*_GC_THRESHOLDS)
