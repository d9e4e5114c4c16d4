"""Commands on Postgres: each is one transaction, decided by the operations that all stores share."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.commands import Command, RetireWorker, SetTopics
from holdfast.core.news import News
from holdfast.stores.operations import commands
from holdfast.stores.postgres import topics
from holdfast.stores.postgres.scripts import Script
from holdfast.stores.postgres.sql import Calls
from holdfast.stores.postgres.unit_of_work import PART, TRANSACTION, decide
from holdfast.stores.workspace.reads import reads_for, to_reopen

SMALL = 4
"""Maximum number of runs, messages or schedules that a command encodes on the event loop. More would block it."""

A = TypeVar("A")


def is_small(command: Command[Any]) -> bool:
    """True if a command is quick enough to be encoded on the event loop.

    Others are not: an event may reach many runs, a control a whole family, a change of limits all runs of a type.
    """
    size = command.size()
    return size is not None and size <= SMALL


def apply(calls: Calls, command: Command[A], at: Micros | None) -> Script[tuple[A, News]]:
    """Apply a command. Return its answer and the news to announce."""
    answer, news = yield from _apply(calls, command, at)
    return cast("A", answer), news


def _apply(calls: Calls, command: Command[Any], at: Micros | None) -> Script[tuple[object, News]]:
    # Topics and workers are not among the rows that operations load: nothing is decided about them.
    if isinstance(command, SetTopics):
        yield from TRANSACTION.around(topics.put(calls.schema, command.topics))
        return None, News()
    if isinstance(command, RetireWorker):
        yield calls.retire, (command.worker_id,)
        return None, News()
    reads = [*reads_for(command)]
    for run_id, limit in command.needs().reopenings.items():
        found = yield calls.lost, (run_id, limit)
        reads += to_reopen(msgspec.json.decode(found, type=list[str]))
    return (yield from decide(calls, reads, lambda unit, now: commands.apply(unit, command, now), at))


def apply_in(calls: Calls, command: Command[A], at: Micros | None) -> Script[tuple[A, News]]:
    """Apply a command in a transaction that is already open."""
    return decide(calls, reads_for(command), lambda unit, now: commands.apply(unit, command, now), at, PART)
