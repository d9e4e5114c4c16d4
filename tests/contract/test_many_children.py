"""Thousands of children that a parent awaits one by one, as `asyncio.gather` does: each end costs the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core import rules
from holdfast.core.checkpoint import Suspend
from holdfast.core.model import Arrival, Wait
from holdfast.core.states import RunState
from holdfast.stores.workspace import rows
from holdfast.testing.contract.arrange import (
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    claim_one,
    for_child,
    held,
    succeed,
    the_run,
    write,
)
from tests.stage import MEMORY_KINDS, STORE_KINDS, Stage, url_for

COUNT = 40


class Work:
    """Counts the waits that are examined for an arrival, and those loaded for that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        counted_down, records_of = rules.counted_down, rows._records_of

        def counting(waits: Sequence[Wait], arrival: Arrival) -> Any:
            self.count += len(waits)
            return counted_down(waits, arrival)

        def loading(loaded: rows.Loaded) -> Any:
            self.count += len(loaded.waits)
            return records_of(loaded)

        monkeypatch.setattr(rules, "counted_down", counting)
        monkeypatch.setattr(rows, "_records_of", loading)


@pytest.fixture(params=[MEMORY_KINDS[0], *STORE_KINDS])
def stage(request: pytest.FixtureRequest, tmp_path: Any) -> Stage:
    return Stage(request.param, tmp_path, url_for(request.param, request))


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("scope", ["", "+1/"])
async def test_only_the_first_end_of_a_child_reads_the_waits_of_its_parent(
    stage: Stage, scope: str, monkeypatch: pytest.MonkeyPatch, *, is_held: bool
) -> None:
    store = stage.store()
    await store.open()
    numbers = range(2, COUNT + 2)
    places = {number: f"{scope}call#{number}" for number in numbers}
    family = [
        an_intent(number, type="child", parent_id=an_id(1), parent_location=place) for number, place in places.items()
    ]
    waits = tuple(for_child(number, location=place) for number, place in places.items())
    parent = await held(store)
    await write(store, checkpoint_for(parent, Suspend(), children=tuple(family), waits=waits))
    leases = (await claim(store, types=["child"], limit=COUNT)).leases
    if is_held:
        await write(store, checkpoint_for(leases[0], succeed()))
        parent, leases = await claim_one(store), leases[1:]
    work = Work(monkeypatch)

    for lease in leases:
        await write(store, checkpoint_for(lease, succeed()))

    run = await the_run(store)
    await store.close()
    assert work.count <= (0 if is_held else 2 * COUNT), "the waits were looked at again and again"
    assert (run.state, run.arrivals) == (RunState.RUNNING if is_held else RunState.SUSPENDED, COUNT)
    assert run.is_held == is_held
    assert run.ready_at is not None
