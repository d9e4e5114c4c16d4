"""Foresight: what a command is known to read, so that one load is enough for most. The operation asks for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.commands import Command
from holdfast.core.model import Event, Intent, MessageToRun
from holdfast.stores.kv import names
from holdfast.stores.kv.catalogue import VALUE
from holdfast.stores.kv.driver import AllFields, Fields, Log, Range, Read, Reserve
from holdfast.stores.kv.histories import known_fields
from holdfast.stores.kv.runs import head_of, payload_of, reads_to_close


def reads_for(command: Command[Any]) -> list[Read]:
    """Return the reads that a command needs at first."""
    needs = command.needs()
    reads: list[Read] = [head_of(run_id) for run_id in needs.runs]
    for run_id in needs.endings:
        reads += reads_to_close(run_id)
    for run_id in needs.histories:
        reads += (head_of(run_id), payload_of(run_id), AllFields(names.history(run_id)))
    reads += [AllFields(names.inbox(run_id)) for run_id in needs.inboxes]
    reads += [Log(names.audit(run_id)) for run_id in needs.audits]
    for message in needs.messages:
        reads += for_message(message)
    if needs.events:
        reads += (*for_events(needs.events), Reserve(names.EVENT_NUMBERS, len(needs.events)))
    if needs.types:
        reads.append(AllFields(names.RULED))
    reads += [Fields(names.type_rule(type), ("rule",)) for type in needs.types]
    reads += [AllFields(names.flows(type)) for type in needs.flows]
    reads += [Fields(names.letter(number), (VALUE,)) for number in needs.letters]
    reads += [Fields(names.schedule(name), (VALUE,)) for name in needs.schedules]
    return reads


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
