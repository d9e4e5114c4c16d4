"""Completing: what a shell offers after TAB that only the store knows: runs, types and topics.

It never fails, never hangs, never makes a database and never loads the user's application: when in doubt nothing is
offered. Commands and options are completed by click itself, without a look at the store.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from holdfast.app import session_of
from holdfast.core.questions import ListTopics

if TYPE_CHECKING:
    from holdfast.app import Holdfast

LIMIT_SECONDS = 1.5
"""So long somebody waits after TAB, at most."""

_OFFERED = 50
_LOOKED_AT = 200

Found = dict[str, str]
"""What could be meant, each with a few words about it, which some shells show."""


def runs(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest runs whose ids begin so."""

    async def look(hf: Holdfast) -> Found:
        from holdfast.core.questions import Query

        found = await session_of(hf).store.list(Query(id_prefix=incomplete or None, limit=_OFFERED))
        return {one.run.id: f"{one.run.state} {one.run.type}" for one in found}

    return _offered(context, incomplete, look)


def types(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The types of workers, and of the newest runs."""

    async def look(hf: Holdfast) -> Found:
        from holdfast.core.questions import Query

        found = dict.fromkeys((type for worker in await session_of(hf).store.workers() for type in worker.types), "")
        newest = await session_of(hf).store.list(Query(limit=_LOOKED_AT))
        return found | {one.run.type: "" for one in newest if one.unreadable is None}

    return _offered(context, incomplete, look)


def topics(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics that have rules, and those that the newest runs wait for."""

    async def look(hf: Holdfast) -> Found:
        from holdfast.core.model import WaitKind
        from holdfast.core.questions import Query
        from holdfast.core.states import RunState

        waiting = await session_of(hf).store.list(Query(states=frozenset({RunState.SUSPENDED}), limit=_LOOKED_AT))
        events = [wait for one in waiting for wait in one.waits if wait.kind is WaitKind.EVENT]
        found = {topic.name: topic.mode for topic in await session_of(hf).store.catalog(ListTopics())}
        return {name: "a run waits for it" for wait in events for name in wait.names} | found

    return _offered(context, incomplete, look)


def _offered(
    context: click.Context, incomplete: str, look: Callable[[Holdfast], Awaitable[Found]]
) -> list[CompletionItem]:
    from holdfast.cli.session import in_session
    from holdfast.cli.settings import Settings

    logging.disable()  # nobody asked for talk in the middle of a line
    with _limited():
        try:
            found = in_session(Settings.of(context.obj or {}), look)
        except Exception:  # noqa: BLE001 - whatever it is, there is nothing to offer
            return []
    return list(_items(found, incomplete))


def _items(found: Found, incomplete: str) -> Iterable[CompletionItem]:
    return [CompletionItem(name, help=about) for name, about in sorted(found.items()) if name.startswith(incomplete)]


@contextmanager
def _limited() -> Iterator[None]:
    """End this process, which is for one TAB only, if it takes too long: threads that wait would keep it."""

    def give_up(*_: Any) -> None:
        os._exit(0)

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
