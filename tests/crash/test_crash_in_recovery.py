"""A process that recovers a large family vanishes before or after any call of the store: the end is the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from holdfast import Context, Fatal, Registry, RunFailed, RunHandle, RunState
from holdfast.core.commands import Command, Control, Recover
from holdfast.core.ports import Store
from holdfast.engine.controls import Controls
from holdfast.testing.faults import FaultyStore, When
from holdfast.testing.harness import Harness
from tests.stage import Stage, url_for

PARCELS = 7
LIMIT = 3


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path, url_for(request.param, request))


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a recovery take several transactions."""
    complete = Controls.request

    def request(verb: str, run_id: str, **parameters: Any) -> Control[Any]:
        made = complete(verb, run_id, **parameters)
        return replace(made, limit=LIMIT) if isinstance(made, Recover) else made

    monkeypatch.setattr(Controls, "request", request)


A = TypeVar("A")


class Vanished(Exception):
    """The recovering process vanished."""


class Recoverers(FaultyStore):
    """Counts the calls that recover runs; at one of them the process vanishes."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.recoveries = 0
        self.end: tuple[int, When] | None = None

    async def apply(self, command: Command[A]) -> A:
        is_recovery = isinstance(command, Recover)
        if not is_recovery:
            return await super().apply(command)
        self.recoveries += 1
        if self.end == (self.recoveries, "before"):
            raise Vanished
        answer = await super().apply(command)
        if self.end == (self.recoveries, "after"):
            raise Vanished
        return answer


class Shop:
    """Orders of many parcels; every other parcel has a label, which is a child run."""

    def __init__(self) -> None:
        self.is_broken = True
        self.labels: list[int] = []
        self.app = Registry()
        self.app.workflow("label")(self.label)
        self.app.workflow("parcel")(self.parcel)
        self.app.workflow("order")(self.order)

    async def label(self, ctx: Context, number: int) -> int:
        return await ctx.step("print", self.print, number)

    async def parcel(self, ctx: Context, number: int) -> int:
        result: int = await (ctx.call("label", {"number": number}) if number % 2 else self.label(ctx, number))
        return result

    async def order(self, ctx: Context) -> list[int]:
        return await ctx.map("parcel", [{"number": number} for number in range(PARCELS)], limit=4)

    def print(self, number: int) -> int:
        if self.is_broken:
            raise Fatal("out of paper")
        self.labels.append(number)
        return number


async def recovered(stage: Stage, at: int, when: When, *, works_meanwhile: bool) -> int:
    """Recover an order and vanish at one of the calls. Return the number of calls made."""
    shop, stores = Shop(), list[Recoverers]()

    def wrap(store: Store) -> Store:
        stores.append(Recoverers(store))
        return stores[-1]

    async with stage.harness(shop.app, wrap=wrap) as h:
        before = {info.id async for info in h.list()}
        run: RunHandle[Any] = await h.start("order", {})
        with pytest.raises(RunFailed):
            await run.result()
        shop.is_broken, stores[0].end = False, (at, when)
        try:
            await run.recover()
        except Vanished:
            if works_meanwhile:
                await h.settle()
            await _continue(h, run.id)
        calls = stores[0].recoveries
        assert await run.result() == list(range(PARCELS))
        assert Counter(shop.labels) == Counter(range(PARCELS))
        states = Counter([info.state async for info in h.list() if info.id not in before])
        assert states == {RunState.SUCCEEDED: 1 + PARCELS + PARCELS // 2}
    return calls


async def _continue(h: Harness, run_id: str) -> None:
    """Recover from another process, which does not know how far the first one came."""
    run = h.run(run_id)
    await run.recover()
    assert not (await run.info()).state.is_end or (await run.info()).state is RunState.SUCCEEDED


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("works_meanwhile", [False, True])
async def test_a_recovery_that_is_cut_off_at_any_call_is_continued_by_the_next(
    stage: Stage, when: When, works_meanwhile: bool
) -> None:
    calls = await recovered(stage, 0, when, works_meanwhile=works_meanwhile)
    assert calls == 4, "ten runs below it are reopened, three at a time, and it itself with the last of them"
    for number in range(1, calls + 1):
        await recovered(stage, number, when, works_meanwhile=works_meanwhile)
