"""A large family is recovered in several transactions, while a worker runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast import Context, Fatal, Registry, RunFailed, RunState
from holdfast.app import session_of
from holdfast.core.commands import Command, Recover
from holdfast.core.ports import Store
from holdfast.core.questions import CountRuns
from holdfast.testing.faults import FaultyStore
from tests.stage import Stage, url_for

PARCELS = 2_500


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path, url_for(request.param, request))


A = TypeVar("A")


class Controls(FaultyStore):
    """Records the results of requests."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.answers: list[object] = []

    async def apply(self, command: Command[A]) -> A:
        answer = await super().apply(command)
        if isinstance(command, Recover):
            self.answers.append(answer)
        return answer


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_thousands_of_children_are_reopened_a_thousand_at_a_time(stage: Stage) -> None:
    app, labels, is_broken, stores = Registry(), list[int](), [True], list[Controls]()

    @app.task
    def parcel(number: int) -> int:
        if is_broken[0]:
            raise Fatal("out of paper")
        labels.append(number)
        return number

    @app.workflow
    async def order(ctx: Context) -> int:
        return len(await ctx.map(parcel, range(PARCELS), limit=100))

    def wrap(store: Store) -> Store:
        stores.append(Controls(store))
        return stores[-1]

    async with stage.harness(app, wrap=wrap) as h:
        run = await h.start(order)
        with pytest.raises(RunFailed, match=f"{PARCELS} of {PARCELS} branches"):
            await run.result()
        is_broken[0] = False

        assert await run.recover()

        assert stores[0].answers == [None, None, True]
        assert await run.result() == PARCELS
        assert Counter(labels) == Counter(range(PARCELS))
        assert await counts(session_of(h).store) == {RunState.SUCCEEDED: PARCELS + 1}


async def counts(store: Store) -> dict[Any, int]:
    """Return the number of runs in each state."""
    total: Counter[Any] = Counter()
    for states in (await store.stats(CountRuns())).values():
        total += Counter(states)
    return dict(total)
