"""Claim order: the order in which workers get ready runs.

Priority decides, then rank, then ready time, then id. There are three *ranks*: runs that have begun, then children that
have not begun, then new starts. So a backlog of new starts never delays work in progress.

No rank starves. While several ranks are ready, one in eight of the runs that a worker claims is a new start, and one in
eight of the others is a child. The worker counts across its claims, and the counts travel with each claim (`Shares`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from holdfast.core.clock import Micros
from holdfast.core.model import Run, Value

BEGUN: Final = 0
"""Rank of a run that a worker has claimed before."""
CHILD: Final = 1
"""Rank of a child that no worker has claimed yet."""
NEW: Final = 2
"""Rank of a run without a parent that no worker has claimed yet."""

RANKS: Final = 3
SHARE: Final = 8
"""One in this number of claimed runs is of the rank that would otherwise starve."""

EPOCH_TOKENS: Final = 1_000_000_000
"""Number by which all tokens leap when a store begins a new epoch, because it may have lost writes."""

Place = tuple[int, int, Micros, str]
"""Priority, rank, ready time and id."""


class Shares(Value, frozen=True):
    """Counts of runs claimed since the last new start, and of begun runs claimed since the last child.

    Neither count exceeds `SHARE - 1`. At that value the waiting rank is next.
    """

    since_new: int = 0
    since_child: int = 0


def rank_of(run: Run) -> int:
    """The rank of a run. It changes once, when a worker claims the run for the first time."""
    if run.token > 0:
        return BEGUN
    return NEW if run.parent_id is None else CHILD


def rank_before(run: Run) -> int:
    """The rank of a run before its last claim. The token of a first claim is the first one of its epoch."""
    if run.token % EPOCH_TOKENS != 1:
        return BEGUN
    return NEW if run.parent_id is None else CHILD


def place_of(run: Run) -> Place:
    """The place of a run in the claim order, without regard to shares."""
    return run.priority, rank_of(run), run.ready_at or 0, run.id


def next_rank(shares: Shares, ready: Collection[int]) -> int:
    """The rank to claim from next, out of the ranks that have a ready run."""
    if NEW in ready and (len(ready) == 1 or shares.since_new >= SHARE - 1):
        return NEW
    if CHILD in ready and (BEGUN not in ready or shares.since_child >= SHARE - 1):
        return CHILD
    return BEGUN


def counted(shares: Shares, rank: int) -> Shares:
    """The counts after one more run of a rank was claimed."""
    if rank == NEW:
        return Shares(since_child=shares.since_child)
    since_new = min(SHARE - 1, shares.since_new + 1)
    return Shares(since_new, 0 if rank == CHILD else min(SHARE - 1, shares.since_child + 1))


def after_claims(shares: Shares, claimed: Iterable[Run]) -> Shares:
    """The counts after a claim won these runs, in this order. The runs are as they are after the claim."""
    for run in claimed:
        shares = counted(shares, rank_before(run))
    return shares
