"""Checkpoints: the store writes everything a turn gained under the run's token, or refuses all of it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Checkpoint, ContinueAsNew, Suspend, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Entry, Run
from holdfast.stores.operations import arrivals, leases, starts, transitions
from holdfast.stores.operations.unit_of_work import UnitOfWork


def write(unit: UnitOfWork, checkpoints: Sequence[Checkpoint], now: Micros) -> Verdicts:
    """Write each checkpoint whose token is still current, and return a verdict on each."""
    return Verdicts(verdicts=tuple(write_one(unit, one, now) for one in checkpoints), now=now)


def write_one(unit: UnitOfWork, checkpoint: Checkpoint, now: Micros) -> Verdict:
    run = unit.runs.get(checkpoint.run_id)
    verdict = rules.judge(run, checkpoint)
    if run is None or verdict != "apply":
        return refused(unit, checkpoint, verdict)
    if isinstance(checkpoint.next, ContinueAsNew):
        unit.histories.clear(run.id)
    for entry in checkpoint.entries:
        record(unit, run.id, run.token, entry, now)
    for scope in checkpoint.pruned:
        unit.histories.prune(run.id, scope)
    if checkpoint.forgotten:
        unit.histories.forget(run.id, checkpoint.forgotten)
    if checkpoint.consumed:
        arrivals.consume(unit, run.id, checkpoint.consumed, now)
    if checkpoint.waits is not None:
        unit.waits.put(run.id, checkpoint.waits)
        if run.arrivals:
            arrivals.give_back(unit, run, checkpoint.waits, now)
        arrivals.collect_missed(unit, run, checkpoint.waits, now)
    _send_out(unit, checkpoint, now)
    _publish(unit, run, checkpoint, now)
    return _advance(unit, checkpoint, now)


def refused(unit: UnitOfWork, checkpoint: Checkpoint, verdict: str) -> Verdict:
    """Return the verdict on a checkpoint whose run is lost, or that was written before."""
    if verdict == "lost":
        return Verdict(run_id=checkpoint.run_id, is_lost=True, is_held=False)
    return Verdict(run_id=checkpoint.run_id, is_held=False, state=_loaded(unit, checkpoint.run_id).state)


def record(unit: UnitOfWork, run_id: str, token: int, entry: Entry, now: Micros) -> None:
    """Write an entry. A failed attempt that will be retried is audited too."""
    fact = audit.of_entry(run_id, entry, now)
    if fact is None:
        unit.histories.record(run_id, token, entry)
    elif unit.histories.try_record(run_id, token, entry):
        unit.audit.note(fact)


def _publish(unit: UnitOfWork, run: Run, checkpoint: Checkpoint, now: Micros) -> None:
    """Publish the values of a run, and audit its heartbeat."""
    if checkpoint.values:
        unit.runs.publish(run.id, checkpoint.values)
    if (fact := audit.of_beat(run, checkpoint, now)) is not None:
        unit.audit.note_once(fact, checkpoint.beat)


def _send_out(unit: UnitOfWork, checkpoint: Checkpoint, now: Micros) -> None:
    """Apply what a checkpoint does to other runs, and keep its replies."""
    if checkpoint.children:
        starts.create_children(unit, checkpoint.children, now)
    for message in checkpoint.messages:
        if (reason := arrivals.send_one(unit, message, now).refused) is not None:
            unit.audit.note_once(audit.of_drop(checkpoint.run_id, message, reason, now))
    for event in checkpoint.events:
        arrivals.publish(unit, event, now)
    for run_id in checkpoint.cancels:
        transitions.cancel(unit, run_id, rules.BY_PARENT, now)
    if checkpoint.replies:
        # Reversed, because the first reply to a message stands and the last one in a dict comprehension wins.
        replies = {reply.message_id: (reply.payload, now) for reply in reversed(checkpoint.replies)}
        unit.inboxes.keep_replies(checkpoint.run_id, replies)
        unit.news.replied.add(checkpoint.run_id)


def _advance(unit: UnitOfWork, checkpoint: Checkpoint, now: Micros) -> Verdict:
    """Give the run its next state. This comes last, when all arrivals of this unit of work are counted."""
    run = _loaded(unit, checkpoint.run_id)
    if run.token != checkpoint.token:  # it cancelled itself, or a run whose end cancels it
        return Verdict(run_id=run.id, is_held=False, state=run.state)
    if checkpoint.waits is None and isinstance(checkpoint.next, Suspend):
        # None means that the waits did not change. `rules.advanced` still needs their deadlines.
        checkpoint = replace(checkpoint, waits=tuple(unit.waits.of(run.id)))
    transitions.move(unit, run, rules.advanced(run, checkpoint, now), now)
    run = _loaded(unit, checkpoint.run_id)
    if not run.is_held:
        return Verdict(run_id=run.id, is_held=False, state=run.state)
    return leases.verdict(unit, run, checkpoint.seen)


def _loaded(unit: UnitOfWork, run_id: str) -> Run:
    run = unit.runs.get(run_id)
    assert run is not None
    return run
