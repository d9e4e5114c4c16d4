"""Loaded rows: decisions about a queue of which only the first runs were loaded."""

from __future__ import annotations

import pytest

from holdfast.core import limits, rules
from holdfast.core.claim_order import BEGUN, CHILD, NEW, RANKS
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.stores.operations.limits import heads
from holdfast.stores.workspace.decision import Missing
from holdfast.stores.workspace.reads import QueueRead, Reads, RunRead
from holdfast.stores.workspace.row_unit import RowUnit
from holdfast.stores.workspace.rows import Loaded, RowWorkspace

QUEUE = "type:shop"
FIRST, LATER = 50, 100


def a_run(rank: int, number: int, priority: int = FIRST) -> Run:
    return Run(
        id=f"{priority}-{rank}-{number}",
        type="shop",
        state=RunState.PENDING,
        payload="{}",
        priority=priority,
        created_at=1,
        start_at=1,
        updated_at=1,
        token=int(rank == BEGUN),
        parent_id="p" if rank == CHILD else None,
    )


def unit_of(*runs: Run, count: int) -> RowUnit:
    """A unit of work that knows these waiting runs, after at most this number was loaded."""
    waits = [(run.id, limits.parking(run, QUEUE, 1)) for run in runs]
    parked = [(QUEUE, (wait.after, wait.since, run_id)) for run_id, wait in waits]
    loaded = Loaded(now=1, runs=[*runs], waits=waits, arrivals=[], closing=[], parked=parked)
    return RowUnit(RowWorkspace(loaded, Reads([*(RunRead(run.id) for run in runs), QueueRead(QUEUE, count)])))


def head_ids(unit: RowUnit) -> list[str]:
    return [run.id for run in heads(unit, QUEUE)]


def several(rank: int, priority: int = FIRST) -> list[Run]:
    return [a_run(rank, number, priority) for number in range(2)]


def test_the_first_of_each_rank_is_known_if_enough_of_each_were_loaded() -> None:
    unit = unit_of(*several(BEGUN), *several(CHILD), *several(NEW), count=2)

    assert head_ids(unit) == [f"{FIRST}-{rank}-0" for rank in range(RANKS)]


@pytest.mark.parametrize("rank", range(RANKS))
def test_more_of_a_rank_are_loaded_when_those_loaded_have_gone(rank: int) -> None:
    unit = unit_of(*several(BEGUN), *several(CHILD), *several(NEW), count=2)
    for run in several(rank):
        unit.waits.put(run.id, ())

    with pytest.raises(Missing) as missing:
        heads(unit, QUEUE)

    (read,) = missing.value.reads
    assert isinstance(read, QueueRead)
    assert read.name == QUEUE
    assert read.count > 2


def test_a_rank_with_fewer_loaded_than_wanted_has_no_others() -> None:
    unit = unit_of(*several(BEGUN), a_run(CHILD, 0), count=2)
    unit.waits.put(a_run(CHILD, 0).id, ())

    assert head_ids(unit) == [f"{FIRST}-{BEGUN}-0"]


def test_a_queue_with_fewer_loaded_than_wanted_has_no_others() -> None:
    unit = unit_of(*several(NEW), count=3)
    for run in several(NEW):
        unit.waits.put(run.id, ())

    assert unit.waits.first(QUEUE, rules.LIMIT_LOCATION) is None
    assert head_ids(unit) == []


def test_the_ranks_of_the_last_priority_that_was_loaded_are_known() -> None:
    unit = unit_of(*several(NEW), *several(BEGUN, LATER), *several(CHILD, LATER), count=4)
    for run in several(NEW):
        unit.waits.put(run.id, ())

    assert head_ids(unit) == [f"{LATER}-{BEGUN}-0", f"{LATER}-{CHILD}-0"]


def test_a_later_priority_is_not_searched_before_the_last_that_was_loaded() -> None:
    unit = unit_of(*several(NEW), count=2)
    for run in several(NEW):
        unit.waits.put(run.id, ())

    with pytest.raises(Missing):
        unit.waits.first(QUEUE, rules.LIMIT_LOCATION)
