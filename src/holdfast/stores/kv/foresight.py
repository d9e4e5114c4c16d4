"""Foresight: what a command is known to read, so that one load is enough for most. The operation asks for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from holdfast.core import schedules
from holdfast.core.commands import (
    AnyCommand,
    Command,
    Control,
    EmitEvents,
    FireSchedules,
    Fork,
    OfferTypes,
    PauseSchedules,
    PurgeDeadLetters,
    PutSchedules,
    Recover,
    RegisterFlow,
    RemoveSchedules,
    ReplayDeadLetters,
    Rewind,
    SendMessages,
    TriggerSchedule,
)
from holdfast.core.model import Event, Intent, MessageToRun
from holdfast.stores.kv import names
from holdfast.stores.kv.catalogue import VALUE
from holdfast.stores.kv.driver import AllFields, Fields, Log, Range, Read, Reserve
from holdfast.stores.kv.inboxes import known_fields
from holdfast.stores.kv.runs import head_of, payload_of, reads_to_close


def reads_for(command: Command[Any]) -> list[Read]:  # noqa: C901, PLR0912 - one case for each kind of command
    """Return the reads that a command needs at first."""
    match cast("AnyCommand", command):
        case Recover() | Rewind() | Fork() as control:
            run_id = control.run_id
            history = AllFields(names.history(run_id))
            return [
                head_of(run_id),
                payload_of(run_id),
                history,
                Log(names.audit(run_id)),
                AllFields(names.inbox(run_id)),
            ]
        case Control() as control:
            return [*reads_to_close(control.run_id), Log(names.audit(control.run_id))]
        case SendMessages(messages=messages):
            return [read for message in messages for read in for_message(message)]
        case EmitEvents(events=events):
            return [*for_events(events), Reserve(names.EVENT_NUMBERS, len(events))] if events else []
        case OfferTypes(offers=offers):
            known: list[Read] = [AllFields(names.RULED)]
            for one in offers:
                known += [Fields(names.type_rule(one.name), ("rule",)), AllFields(names.flows(one.name))]
            return known
        case RegisterFlow(definition=definition):
            type = definition.type
            return [AllFields(names.RULED), Fields(names.type_rule(type), ("rule",)), AllFields(names.flows(type))]
        case ReplayDeadLetters(numbers=numbers) | PurgeDeadLetters(numbers=numbers):
            return [Fields(names.letter(number), (VALUE,)) for number in numbers]
        case PutSchedules(schedules=some):
            return [_schedule(one.name) for one in some]
        case PauseSchedules(names=some) | RemoveSchedules(names=some):
            return [_schedule(name) for name in some]
        case TriggerSchedule() as trigger:
            return [_schedule(trigger.name), head_of(trigger.run_id)]
        case FireSchedules(firings=firings):
            reads: list[Read] = []
            for firing in firings:
                reads.append(_schedule(firing.schedule.name))
                reads += [head_of(run_id) for run_id in firing.schedule.open_run_ids]
                reads += [head_of(schedules.run_id_of(firing.schedule, slot)) for slot in firing.slots]
            return reads
        case _:
            return []


def _schedule(name: str) -> Fields:
    return Fields(names.schedule(name), (VALUE,))


def for_message(message: MessageToRun) -> list[Read]:
    """Return the reads for a message that is to be delivered."""
    if message.key is not None:
        return [Fields(names.key(message.key), ("id",))]
    if message.run_id is None:
        return []
    return [head_of(message.run_id), Fields(names.message_ids(message.run_id), known_fields(message.id))]


def for_events(events: Sequence[Event]) -> list[Read]:
    """Return the reads for events that are to be published."""
    reads: list[Read] = [AllFields(names.TOPICS)]
    for event in events:
        reads.append(Fields(names.events(event.topic), (f"i{event.id}",)))
        reads += [Range(names.waiters_index(event.topic)), Fields(names.waiters(event.topic), ())]
    return reads


def for_intent(intent: Intent) -> list[Read]:
    """Return the reads for a run that is to be created."""
    reads: list[Read] = [head_of(intent.id)]
    if intent.key is not None:
        reads.append(Fields(names.key(intent.key), ("id",)))
    return reads
