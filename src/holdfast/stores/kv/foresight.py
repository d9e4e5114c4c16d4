"""Foresight: what an operation is known to read, so that one load is enough for most. It asks for the rest.

An operation that closes or reopens a family asks for one level at a time, and starts over each time. For a chain of a
thousand runs that would be a thousand decisions. So a load also follows the runs that it has found: depth costs loads
but no decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.commands import Command
from holdfast.core.model import EntryKind, Event, Intent, MessageToRun
from holdfast.core.states import RunState
from holdfast.stores.kv import names
from holdfast.stores.kv.catalogue import VALUE
from holdfast.stores.kv.driver import AllFields, Fields, Log, Range, Read, Reserve
from holdfast.stores.kv.histories import entry_of, known_fields
from holdfast.stores.kv.names import run_of
from holdfast.stores.kv.runs import FAILURES, HEAD, head_of, payload_of, reads_to_close
from holdfast.stores.kv.workspace import KnownPartitions


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


# Families


Follow = Callable[[KnownPartitions, Sequence[Read]], list[Read]]
"""Returns what to load next, after some reads were loaded."""

_CLOSES = b'"on_close":"cancel"'
_LOST = (RunState.FAILED, RunState.CANCELLED)
_CHILDREN = names.children_index("")
_HEAD = names.head("")
_HISTORY = names.history("")


def closing(known: KnownPartitions, loaded: Sequence[Read]) -> list[Read]:
    """Return what a cancel of whole families reads next.

    The head of a child shows if it ends with its parent. If so, its own children are read, and then their heads.
    """
    more: list[Read] = []
    for read in loaded:
        if isinstance(read, Range) and read.index.startswith(_CHILDREN):
            heads = (head_of(member[names.TIME_DIGITS :]) for member in known.range(read)[0])
            more += [head for head in heads if not known.has(head)]
        elif isinstance(read, Fields) and read.fields == HEAD and read.partition.startswith(_HEAD):
            body = known.field(read.partition, names.BODY)
            if body is not None and _CLOSES in body and known.field(read.partition, names.MOVING) is not None:
                run_id = read.partition[len(_HEAD) :]
                more += [one for one in reads_to_close(run_id) if not known.has(one)]
    return more


def reopening(limit: int) -> Follow:
    """Return what a recovery reads next: failed and cancelled children with their histories, at most `limit`."""
    left = [limit]

    def follow(known: KnownPartitions, loaded: Sequence[Read]) -> list[Read]:
        more: list[Read] = []
        for read in loaded:
            if isinstance(read, AllFields) and read.partition.startswith(_HISTORY):
                more += _children_in(known, read.partition)
            elif isinstance(read, Fields) and read.fields == HEAD and left[0] > 0 and _is_lost(known, read.partition):
                left[0] -= 1
                run_id = read.partition[len(_HEAD) :]
                reads = (AllFields(names.history(run_id)), Log(names.audit(run_id)), payload_of(run_id))
                more += [one for one in reads if not known.has(one)]
        return more

    return follow


def _children_in(known: KnownPartitions, history: str) -> list[Read]:
    refs: list[str] = []
    for location, value in known.whole(history).items():
        if b'"child"' in value:
            try:
                entry = entry_of(location, value)
            except FAILURES:
                continue  # the operation itself reports that it cannot be read
            if entry.kind is EntryKind.CHILD and entry.ref is not None:
                refs.append(entry.ref)
    return [head for head in map(head_of, refs) if not known.has(head)]


def _is_lost(known: KnownPartitions, head: str) -> bool:
    if not head.startswith(_HEAD) or known.field(head, names.MOVING) is not None:
        return False
    body = known.field(head, names.BODY)
    try:
        return body is not None and run_of({names.BODY: body}).state in _LOST
    except FAILURES:
        return False
