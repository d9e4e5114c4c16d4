"""Commands on Postgres: each is one transaction, decided by the operations that all stores share."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.commands import (
    AnyCommand,
    Command,
    FireSchedules,
    OfferTypes,
    PauseSchedules,
    PurgeDeadLetters,
    PutSchedules,
    Recover,
    RegisterFlow,
    RemoveSchedules,
    ReplayDeadLetters,
    RetireWorker,
    SendMessages,
    SetTopics,
    TriggerSchedule,
)
from holdfast.core.hint import News
from holdfast.stores.operations import commands
from holdfast.stores.postgres import schedules, topics
from holdfast.stores.postgres.scripts import Script
from holdfast.stores.postgres.sql import Calls
from holdfast.stores.postgres.unit_of_work import TRANSACTION, Bounds, decided
from holdfast.stores.working.load_request import LoadRequest
from holdfast.stores.working.working_set import WorkingSet

SMALL = 4
"""Maximum number of runs, messages or schedules that a command encodes on the event loop. More would block it."""

A = TypeVar("A")


def is_small(command: Command[Any]) -> bool:
    """True if a command is quick enough to be encoded on the event loop.

    Others are not: an event may reach many runs, a control a whole family, a change of limits all runs of a type.
    """
    match command:
        case SendMessages(messages=some) | PutSchedules(schedules=some) | FireSchedules(firings=some):
            return len(some) <= SMALL
        case PauseSchedules(names=some) | RemoveSchedules(names=some):
            return len(some) <= SMALL
        case TriggerSchedule() | OfferTypes() | RegisterFlow() | ReplayDeadLetters() | PurgeDeadLetters():
            return True
        case _:
            return False


def apply(calls: Calls, command: Command[A], at: Micros | None) -> Script[tuple[A, News]]:
    """Apply a command. Return its answer and the news to announce."""
    answer, news = yield from _apply(calls, cast("AnyCommand", command), at)
    return cast("A", answer), news


def _apply(calls: Calls, command: AnyCommand, at: Micros | None) -> Script[tuple[object, News]]:
    match command:
        case PutSchedules() | PauseSchedules() | RemoveSchedules() | TriggerSchedule() | FireSchedules():
            return (yield from schedules.apply(calls, command, at))
        case SetTopics():
            yield from TRANSACTION.around(topics.put(calls.schema, command.topics))
            return None, News()
        case RetireWorker():
            yield calls.retire, (command.worker_id,)
            return None, News()
        case _:
            to_load = LoadRequest.of(command)
            if isinstance(command, Recover):
                # Load its descendants too. Twice as many as are reopened, because some of them may be skipped.
                found = yield calls.lost, (command.run_id, 2 * command.limit)
                to_load.reopened(msgspec.json.decode(found, type=list[str]))
            return (yield from on_working_set(calls, to_load, command, at))


def on_working_set(
    calls: Calls, to_load: LoadRequest, command: Command[A], at: Micros | None, bounds: Bounds = TRANSACTION
) -> Script[tuple[A, News]]:
    """Apply a command to the working set that is loaded for it."""

    def operation(working: WorkingSet, now: Micros) -> A:
        return commands.apply(working.unit, command, now)

    return decided(calls, to_load, operation, at, bounds)
