"""Commands: dispatch each command to its operation, once for all stores."""

from __future__ import annotations

from typing import TypeVar, assert_never, cast

from holdfast.core.clock import Micros
from holdfast.core.commands import (
    AnyCommand,
    ChangeTypes,
    Command,
    Control,
    EmitEvents,
    FireSchedules,
    OfferTypes,
    PauseSchedules,
    PurgeDeadLetters,
    PutSchedules,
    RegisterFlow,
    RemoveSchedules,
    ReplayDeadLetters,
    RetireWorker,
    SendMessages,
    SetTopics,
    TriggerSchedule,
)
from holdfast.stores.operations import arrivals, controls, schedules, types
from holdfast.stores.operations.unit_of_work import UnitOfWork

A = TypeVar("A")


def apply(unit: UnitOfWork, command: Command[A], now: Micros) -> A:
    """Apply a command and return its answer. A refused command raises before it writes."""
    # The type checker cannot see that each case returns the answer type of its command. The contract tests each one.
    return cast("A", _apply(unit, cast("AnyCommand", command), now))


def _apply(unit: UnitOfWork, command: AnyCommand, now: Micros) -> object:  # noqa: C901, PLR0912 - one line for each command
    match command:
        case Control():
            return controls.control(unit, command, now)
        case SendMessages():
            return arrivals.send(unit, command.messages, now, by=command.by)
        case EmitEvents():
            return arrivals.emit(unit, command.events, now, by=command.by)
        case SetTopics():
            unit.events.put_topics(command.topics)
        case ReplayDeadLetters():
            return arrivals.replay_letters(unit, command.numbers, now, by=command.by)
        case PurgeDeadLetters():
            return sum(unit.dead_letters.remove(number) for number in command.numbers)
        case ChangeTypes():
            types.change(unit, command.changes, now)
        case OfferTypes():
            types.offer(unit, command.worker, command.offers, now)
        case RegisterFlow():
            return types.register_flow(unit, command.definition, command.by, now)
        case RetireWorker():
            unit.workers.remove(command.worker_id)
        case PutSchedules():
            return schedules.put(unit, command.schedules, now)
        case PauseSchedules():
            return schedules.pause(unit, command.names, now, is_paused=command.is_paused)
        case RemoveSchedules():
            return [unit.schedules.remove(name) for name in command.names]
        case TriggerSchedule():
            return schedules.trigger(unit, command.name, command.run_id, now)
        case FireSchedules():
            return schedules.fire(unit, command.firings, now)
        case _:
            assert_never(command)
    return None
