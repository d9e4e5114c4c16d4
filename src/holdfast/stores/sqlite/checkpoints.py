"""Checkpoints: a fast path for checkpoints that carry only entries. `operations/checkpoints.py` writes all others.

The fast path repeats the first and last lines of `write_one` in that module. Hundreds of plain checkpoints share a
commit: one statement reads the fences of all their runs, and no run row is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import rules
from holdfast.core.checkpoint import Checkpoint, Hold, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Fence, Run
from holdfast.stores.operations import leases
from holdfast.stores.operations.checkpoints import record, refused, write_one
from holdfast.stores.sqlite.transaction import Transaction


def write(transaction: Transaction, checkpoints: Sequence[Checkpoint]) -> Verdicts:
    """Write each checkpoint whose fence still holds, and return one verdict per checkpoint."""
    now = transaction.now()
    plain = {place: one for place, one in enumerate(checkpoints) if _is_plain(one)}
    fences = transaction.runs.fences([one.run_id for one in plain.values()])
    # Plain checkpoints first: the others write run rows, which would make the fences above stale.
    verdicts = {place: _write_plain(transaction, one, fences.get(one.run_id), now) for place, one in plain.items()}
    verdicts |= {place: write_one(transaction, one, now) for place, one in enumerate(checkpoints) if place not in plain}
    return Verdicts(verdicts=tuple(verdicts[place] for place in range(len(checkpoints))), now=now)


def _write_plain(transaction: Transaction, checkpoint: Checkpoint, run: Run | Fence | None, now: Micros) -> Verdict:
    """Record the entries of a run that keeps its lease. The run row is read but not written."""
    verdict = rules.judge(run, checkpoint)
    if run is None or verdict != "apply":
        return refused(transaction, checkpoint, verdict)
    for entry in checkpoint.entries:
        record(transaction, run.id, run.token, entry, now)
    return leases.verdict(transaction, run, checkpoint.seen)


def _is_plain(checkpoint: Checkpoint) -> bool:
    """Return True if a checkpoint carries only entries."""
    return (
        type(checkpoint.next) is Hold
        and checkpoint.waits is None
        and not checkpoint.charged
        and not (checkpoint.consumed or checkpoint.children or checkpoint.messages)
        and not (checkpoint.events or checkpoint.cancels or checkpoint.values)
        and not (checkpoint.replies or checkpoint.pruned or checkpoint.forgotten or checkpoint.beat)
    )
