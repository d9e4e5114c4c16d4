"""Checkpoints: what a turn gained is written under the run's token, or refused whole."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Checkpoint, Renew, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Entry
from holdfast.stores.memory import arrivals, leases, moves, queues, starts
from holdfast.stores.memory.state import Record, State


def write(state: State, checkpoints: Sequence[Checkpoint], now: Micros) -> Verdicts:
    """Write each checkpoint that still has the right to be written."""
    return Verdicts(verdicts=tuple(_write_one(state, one, now) for one in checkpoints), now=now)


def _write_one(state: State, checkpoint: Checkpoint, now: Micros) -> Verdict:
    record = state.records.get(checkpoint.run_id)
    verdict = rules.judge(record.run if record else None, checkpoint)
    if record is None or verdict == "lost":
        return Verdict(run_id=checkpoint.run_id, is_lost=True, is_held=False)
    if verdict == "applied":
        return Verdict(run_id=checkpoint.run_id, is_held=False, state=record.run.state)

    if isinstance(checkpoint.next, Renew):
        record.forget_history()
    for entry in checkpoint.entries:
        _record(state, record, entry, now)
    for scope in checkpoint.pruned:
        _prune(record, scope)
    arrivals.consume(state, record, checkpoint.consumed, now)
    if checkpoint.waits is not None:
        record.waits = checkpoint.waits
        queues.give_back(state, record, now)
        arrivals.collect_missed(state, record, now)
    _send_out(state, record, checkpoint, now)
    record.values |= checkpoint.values
    if (fact := audit.of_beat(record.run, checkpoint, now)) is not None:
        state.note_once(record, fact)
    return _advance(state, record, checkpoint, now)


def _record(state: State, record: Record, entry: Entry, now: Micros) -> None:
    recorded = record.recorded(entry.location)
    if recorded is None or rules.supersedes(entry, recorded):
        record.entries[entry.location] = entry
        state.note(record, audit.of_entry(record.run.id, entry, now))


def _prune(record: Record, scope: str) -> None:
    """Forget what happened in a scope, but for what would have to be undone."""
    for entry in record.recorded_within(scope):
        if not entry.has_undo:
            del record.entries[entry.location]


def _send_out(state: State, record: Record, checkpoint: Checkpoint, now: Micros) -> None:
    """Everything a checkpoint does to other runs."""
    starts.create_children(state, checkpoint.children, now)
    for message in checkpoint.messages:
        if (refused := arrivals.send_one(state, message, now).refused) is not None:
            state.note_once(record, audit.of_drop(checkpoint.run_id, message, refused, now))
    for event in checkpoint.events:
        arrivals.publish(state, event, now)
    for run_id in checkpoint.cancels:
        moves.cancel(state, run_id, rules.BY_PARENT, now)
    for reply in checkpoint.replies:
        record.replies.setdefault(reply.message_id, (reply.payload, now))
        state.news.replied.add(checkpoint.run_id)


def _advance(state: State, record: Record, checkpoint: Checkpoint, now: Micros) -> Verdict:
    """Give the run its next state, now that everything that arrived in this checkpoint is counted."""
    if record.run.token != checkpoint.token:  # it cancelled itself, or something that took it along
        return Verdict(run_id=checkpoint.run_id, is_held=False, state=record.run.state)
    # Waits that did not change have deadlines all the same.
    checkpoint = replace(checkpoint, waits=record.waits)
    moves.move(state, record, rules.advanced(record.run, checkpoint, now), now)
    return leases.verdict(record, checkpoint.seen)
