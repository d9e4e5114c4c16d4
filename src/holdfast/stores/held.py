"""Held runs: what a store remembers of the runs that it has leased, so that most checkpoints need no read.

Only the holder changes a run that is leased, with three exceptions: something arrives, a pause is requested, or the run
is taken away. So the store computes the next state from the run it remembers, and the database writes it if the run is
unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Checkpoint, ContinueAsNew, Finish, Hold, StartRollback, Suspend
from holdfast.core.clock import Micros
from holdfast.core.model import EntryState, Lease, Run, Wait, WaitKind


class Held:
    """The runs that this store has leased, as their holder knows them. Forgetting one costs only a round trip."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._waits: dict[str, tuple[Wait, ...]] = {}

    def lease(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._runs[lease.run.id] = replace(lease.run, payload="")
            if lease.run.token == 1 and lease.run.group is None:
                self._waits[lease.run.id] = ()  # on its first claim a run has no waits
            else:
                self._waits.pop(lease.run.id, None)

    def run(self, run_id: str, token: int) -> Run | None:
        """Return the remembered run if it is held under this token."""
        run = self._runs.get(run_id)
        return run if run is not None and run.token == token else None

    def waits(self, checkpoint: Checkpoint) -> tuple[Wait, ...] | None:
        """Return the waits of a run after a checkpoint, or None if they are unknown."""
        return checkpoint.waits if checkpoint.waits is not None else self._waits.get(checkpoint.run_id)

    def waits_now(self, run_id: str) -> tuple[Wait, ...] | None:
        """Return the waits of a run as they are stored, or None if they are unknown."""
        return self._waits.get(run_id)

    def keep(self, run: Run, waits: tuple[Wait, ...] | None) -> None:
        self._runs[run.id] = run
        if waits is not None:
            self._waits[run.id] = waits

    def forget(self, run_id: str) -> None:
        self._runs.pop(run_id, None)
        self._waits.pop(run_id, None)

    def clear(self) -> None:
        self._runs.clear()
        self._waits.clear()


class Plain(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint that takes one round trip: the run before, the run after by `rules`, and its waits if known."""

    checkpoint: Checkpoint
    before: Run
    after: Run
    waits: tuple[Wait, ...] | None

    @property
    def is_held(self) -> bool:
        return self.after is self.before

    @property
    def ends(self) -> bool:
        return self.after.state.is_end


def plain(checkpoint: Checkpoint, held: Held, now: Micros) -> Plain | None:
    """Return a checkpoint as `Plain`, or None if it takes more than one round trip."""
    run = held.run(checkpoint.run_id, checkpoint.token)
    if run is None or run.stop is not None or _reaches_others(checkpoint):
        return None
    for entry in checkpoint.entries:
        if entry.state is EntryState.RETRYING:
            return None  # a failed attempt is audited
    waits = held.waits(checkpoint)
    step = checkpoint.next
    if isinstance(step, Hold):
        return Plain(checkpoint, run, run, waits) if not (checkpoint.charged and run.crashes) else None
    if run.slots or isinstance(step, (StartRollback, ContinueAsNew)):
        return None
    if isinstance(step, Suspend):
        if waits is None or run.arrivals > checkpoint.seen or run.options.max_suspend is not None:
            return None  # with `max_suspend` the holder decides `suspended_at`; the server function writes its own time
        return Plain(checkpoint, run, rules.advanced(run, replace(checkpoint, waits=waits), now), waits)
    if isinstance(step, Finish) and (run.parent_location is not None or run.retention is not None):
        return None
    return Plain(checkpoint, run, rules.advanced(run, checkpoint, now), waits)


_kind_of = attrgetter("kind")


def _reaches_others(checkpoint: Checkpoint) -> bool:
    """True if a checkpoint concerns other runs, or needs a part of its run's history or audit."""
    if checkpoint.children or checkpoint.messages or checkpoint.events or checkpoint.cancels:
        return True
    if checkpoint.replies or checkpoint.pruned or checkpoint.forgotten or checkpoint.beat:
        return True
    waits = checkpoint.waits
    return bool(waits) and WaitKind.EVENT in map(_kind_of, waits or ())  # `map` is fast: a parent may have thousands


def reached_by(held: Held, batch: Sequence[Checkpoint]) -> set[str]:
    """Return the other runs that checkpoints are known to change. Their own checkpoints must keep the batch's order."""
    reached: set[str] = set()
    for checkpoint in batch:
        run = held.run(checkpoint.run_id, checkpoint.token)
        reached.update(checkpoint.cancels, (message.run_id or "" for message in checkpoint.messages))
        if run is not None and run.parent_id is not None:
            reached.add(run.parent_id)
    return reached
