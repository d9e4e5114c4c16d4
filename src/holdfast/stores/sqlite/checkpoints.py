"""Checkpoints: what a turn gained is written under the run's token, or refused whole."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Checkpoint, Hold, Renew, Suspend, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Fence, Run
from holdfast.stores.sqlite import arrivals, leases, moves, queues, starts
from holdfast.stores.sqlite.desk import Desk

_SET_VALUE = """
    insert into value (run_id, name, value)
    values (?, ?, ?)
    on conflict (run_id, name) do update
    set value = excluded.value
"""


_REPLY = """
    insert into reply (run_id, message_id, payload, at)
    values (?, ?, ?, ?)
    on conflict (run_id, message_id) do nothing
"""


def write(desk: Desk, checkpoints: Sequence[Checkpoint]) -> Verdicts:
    """Write each checkpoint that still has the right to be written."""
    now = desk.now()
    plain = {place: one for place, one in enumerate(checkpoints) if _is_plain(one)}
    fences = desk.fences([one.run_id for one in plain.values()])
    # Those first, as long as what was read of their runs is true.
    verdicts = {place: _write_plain(desk, one, fences.get(one.run_id), now) for place, one in plain.items()}
    verdicts |= {place: _write(desk, one, now) for place, one in enumerate(checkpoints) if place not in plain}
    return Verdicts(verdicts=tuple(verdicts[place] for place in range(len(checkpoints))), now=now)


def _write_plain(desk: Desk, checkpoint: Checkpoint, run: Fence | None, now: Micros) -> Verdict:
    """Hundreds of these share a commit: a step was done and its run goes on. Its row is read but not written."""
    verdict = rules.judge(run, checkpoint)
    if run is None or verdict != "apply":
        return _refused(desk, checkpoint, verdict)
    for entry in checkpoint.entries:
        desk.record(run.id, run.token, entry, now)
    return leases.verdict(desk, run, checkpoint.seen)


def _refused(desk: Desk, checkpoint: Checkpoint, verdict: str) -> Verdict:
    """The answer to a checkpoint that has no right to be written, or was written before."""
    if verdict == "lost":
        return Verdict(run_id=checkpoint.run_id, is_lost=True, is_held=False)
    return Verdict(run_id=checkpoint.run_id, is_held=False, state=_loaded(desk, checkpoint.run_id).state)


def _write(desk: Desk, checkpoint: Checkpoint, now: Micros) -> Verdict:
    run = desk.run(checkpoint.run_id)
    verdict = rules.judge(run, checkpoint)
    if run is None or verdict != "apply":
        return _refused(desk, checkpoint, verdict)
    if isinstance(checkpoint.next, Renew):
        desk.drop_history(run.id)
    for entry in checkpoint.entries:
        desk.record(run.id, run.token, entry, now)
    for scope in checkpoint.pruned:
        desk.prune(run.id, scope)

    arrivals.consume(desk, run.id, checkpoint.consumed, now)
    if checkpoint.waits is not None:
        desk.wait(run.id, checkpoint.waits)
        if run.arrivals:
            queues.give_back(desk, run.id, checkpoint.waits, now)
        arrivals.collect_missed(desk, run, checkpoint.waits, now)
    _send_out(desk, checkpoint, now)
    _tell(desk, run, checkpoint, now)
    return _advance(desk, checkpoint, now)


def _tell(desk: Desk, run: Run, checkpoint: Checkpoint, now: Micros) -> None:
    """What a run lets everybody know of itself."""
    if checkpoint.values:
        values = [(run.id, name, value) for name, value in checkpoint.values.items()]
        desk.connection.executemany(_SET_VALUE, values)
    if (fact := audit.of_beat(run, checkpoint, now)) is not None:
        desk.note_once(fact)
        desk.trim_now_and_then(run.id, checkpoint.beat)


def _is_plain(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint brings nothing but entries."""
    return (
        type(checkpoint.next) is Hold
        and checkpoint.waits is None
        and not checkpoint.charged
        and not (checkpoint.consumed or checkpoint.children or checkpoint.messages)
        and not (checkpoint.events or checkpoint.cancels or checkpoint.values)
        and not (checkpoint.replies or checkpoint.pruned or checkpoint.beat)
    )


def _send_out(desk: Desk, checkpoint: Checkpoint, now: Micros) -> None:
    """Everything a checkpoint does to other runs."""
    if checkpoint.children:
        starts.create_children(desk, checkpoint.children, now)
    for message in checkpoint.messages:
        if (refused := arrivals.send_one(desk, message, now).refused) is not None:
            desk.note_once(audit.of_drop(checkpoint.run_id, message, refused, now))
    for event in checkpoint.events:
        arrivals.publish(desk, event, now)
    for run_id in checkpoint.cancels:
        moves.cancel(desk, run_id, rules.BY_PARENT, now)
    if checkpoint.replies:
        replies = [(checkpoint.run_id, reply.message_id, reply.payload, now) for reply in checkpoint.replies]
        desk.connection.executemany(_REPLY, replies)
        desk.news.replied.add(checkpoint.run_id)


def _advance(desk: Desk, checkpoint: Checkpoint, now: Micros) -> Verdict:
    """Give the run its next state, now that everything that arrived in this transaction is counted."""
    run = _loaded(desk, checkpoint.run_id)
    if run.token != checkpoint.token:  # it cancelled itself, or something that took it along
        return Verdict(run_id=run.id, is_held=False, state=run.state)
    if checkpoint.waits is None and isinstance(checkpoint.next, Suspend):
        # Waits that did not change have deadlines all the same.
        checkpoint = replace(checkpoint, waits=tuple(desk.waits(run.id)))
    moves.move(desk, run, rules.advanced(run, checkpoint, now), now)
    run = _loaded(desk, checkpoint.run_id)
    if not run.is_held:
        return Verdict(run_id=run.id, is_held=False, state=run.state)
    return leases.verdict(desk, run, checkpoint.seen)


def _loaded(desk: Desk, run_id: str) -> Run:
    run = desk.run(run_id)
    assert run is not None
    return run
