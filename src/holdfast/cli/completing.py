"""Shell completion of values that only the store knows: runs, types and topics.

It never fails, never hangs, never creates a database and never loads the user's application. When in doubt, it offers
nothing. Click completes commands and options itself, without the store.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast.app import Holdfast, session_of
from holdfast.cli.option import Settings
from holdfast.cli.session import in_session
from holdfast.core.model import WaitKind
from holdfast.core.questions import ListTopics, Query
from holdfast.core.states import RunState

LIMIT_SECONDS = 1.5
"""Maximum time that a user waits after TAB."""

_OFFERED = 50
_READ = 200

Candidates = dict[str, str]
"""Candidates, each with a short description, which some shells show."""


def runs(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the ids of the newest runs."""

    async def find(hf: Holdfast) -> Candidates:
        found = await session_of(hf).store.list(Query(id_prefix=incomplete or None, limit=_OFFERED))
        return {one.run.id: f"{one.run.state} {one.run.type}" for one in found}

    return _offer(context, incomplete, find)


def types(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the types of workers and of the newest runs."""

    async def find(hf: Holdfast) -> Candidates:
        found = dict.fromkeys((type for worker in await session_of(hf).store.workers() for type in worker.types), "")
        newest = await session_of(hf).store.list(Query(limit=_READ))
        return found | {one.run.type: "" for one in newest if one.unreadable is None}

    return _offer(context, incomplete, find)


def topics(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the topics that have rules, and those that the newest runs wait for."""

    async def find(hf: Holdfast) -> Candidates:
        waiting = await session_of(hf).store.list(Query(states=frozenset({RunState.SUSPENDED}), limit=_READ))
        events = [wait for one in waiting for wait in one.waits if wait.kind is WaitKind.EVENT]
        found = {topic.name: topic.mode for topic in await session_of(hf).store.catalog(ListTopics())}
        return {name: "a run waits for it" for wait in events for name in wait.names} | found

    return _offer(context, incomplete, find)


run_argument = click.argument("run", shell_complete=runs)


def _offer(
    context: click.Context, incomplete: str, find: Callable[[Holdfast], Awaitable[Candidates]]
) -> list[CompletionItem]:
    logging.disable()  # a log line would end up in the middle of the command line
    with _limited():
        try:
            found = in_session(Settings.of(context.obj or {}), find)
        except Exception:  # noqa: BLE001 - after any error there is nothing to offer
            return []
    return [CompletionItem(name, help=about) for name, about in sorted(found.items()) if name.startswith(incomplete)]


@contextmanager
def _limited() -> Iterator[None]:
    """Exit this process, which serves one TAB only, after the time limit. Waiting threads would keep it alive."""

    def give_up(*_: Any) -> None:
        os._exit(0)

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
