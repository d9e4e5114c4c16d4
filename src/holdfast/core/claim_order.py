"""Claim order: which of the runs that are ready a worker gets first.

Priority decides, then rank, then ready time, then id. A *rank* says how far a run has come: one that has begun goes
ahead of a child that has not, and that goes ahead of a new start. So a backlog of new starts never delays work in
progress.

No rank starves: of eight runs that a worker claims one is a new start, and of eight others one is a child, as long as
some of them are ready. The worker counts across its claims, and the counts travel with each claim (`Shares`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from holdfast.core.clock import Micros
from holdfast.core.model import Run, Value

BEGUN: Final = 0
"""A worker has claimed it before."""
CHILD: Final = 1
"""Another run has started it, and no worker has claimed it yet."""
NEW: Final = 2
"""Somebody outside has started it, and no worker has claimed it yet."""

RANKS: Final = 3
SHARE: Final = 8
"""One of so many is of the rank that would starve otherwise."""

Place = tuple[int, int, Micros, str]
"""Priority, rank, ready time and id."""


class Shares(Value, frozen=True):
    """How many runs were given out since the last new start, and how many begun ones since the last child.

    Neither count goes beyond `SHARE - 1`: then it is the turn of the rank that has waited.
    """

    since_new: int = 0
    since_child: int = 0


def rank_of(run: Run) -> int:
    """The rank of a run. It changes once, when a worker claims the run for the first time."""
    if run.token > 0:
        return BEGUN
    return NEW if run.parent_id is None else CHILD


def rank_before(run: Run) -> int:
    """The rank that a run had before its last claim."""
    if run.token > 1:
        return BEGUN
    return NEW if run.parent_id is None else CHILD


def place_of(run: Run) -> Place:
    """The place of a run in the claim order, before the shares are looked at."""
    return run.priority, rank_of(run), run.ready_at or 0, run.id


def next_rank(shares: Shares, ready: Collection[int]) -> int:
    """The rank whose turn it is, of those that have a ready run."""
    if NEW in ready and (len(ready) == 1 or shares.since_new >= SHARE - 1):
        return NEW
    if CHILD in ready and (BEGUN not in ready or shares.since_child >= SHARE - 1):
        return CHILD
    return BEGUN


def counted(shares: Shares, rank: int) -> Shares:
    """The counts after one more run of a rank was given out."""
    if rank == NEW:
        return Shares(since_child=shares.since_child)
    since_new = min(SHARE - 1, shares.since_new + 1)
    return Shares(since_new, 0 if rank == CHILD else min(SHARE - 1, shares.since_child + 1))


def after_claims(shares: Shares, claimed: Iterable[Run]) -> Shares:
    """The counts after a claim has won these runs, in this order. Each of them has been claimed once more since."""
    for run in claimed:
        shares = counted(shares, rank_before(run))
    return shares
