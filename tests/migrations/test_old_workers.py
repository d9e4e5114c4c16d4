"""Processes with older code: they go on after a compatible step, and are refused clearly after any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast import Context, Holdfast, Registry, SchemaOutOfDate
from holdfast.core.ports import Store
from holdfast.core.questions import Query
from holdfast.testing.contract.arrange import an_intent, claim, claimed_ids, held, holding_of, renew, start
from holdfast.testing.patience import until
from tests.migrations.steps import KINDS, ignore, store_of

REFUSED = r"made by a newer version of holdfast; this version needs number \d+: use the newer version here"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The file or the URL of an empty store."""
    return str(tmp_path / "shop.db") if kind == "sqlite" else str(request.getfixturevalue(f"{kind}_url"))


@pytest.fixture
def make(kind: str, place: str) -> Callable[[int], Store]:
    """Makes a store whose code knows this many steps more than ours."""
    return lambda count: store_of(kind, place, count)


@asynccontextmanager
async def opened(store: Store, *, migrate: bool = False) -> AsyncIterator[Store]:
    await store.open(ignore if migrate else None)
    try:
        yield store
    finally:
        await store.close()


async def test_older_code_goes_on_after_a_compatible_step(make: Callable[[int], Store]) -> None:
    async with opened(make(0)) as old:
        lease = await held(old, 1)
        async with opened(make(1), migrate=True) as new:
            await start(new, an_intent(2))
            await start(old, an_intent(3))
            verdicts = await renew(old, holding_of(lease))
            assert [verdict.is_lost for verdict in verdicts.verdicts] == [False]
            assert set(await claimed_ids(old)) == {an_intent(2).id, an_intent(3).id}

    async with opened(make(0)) as again:  # a process with older code that begins only now
        assert len(await again.list(Query())) == 3
        assert make(0).schema().current == make(1).schema().current


async def test_older_code_is_refused_after_a_step_that_is_not_compatible(make: Callable[[int], Store]) -> None:
    async with opened(make(1)) as old:
        lease = await held(old, 1)
        async with opened(make(2), migrate=True) as new:
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: renew(old, holding_of(lease)),
                lambda: claim(old),
                lambda: start(old, an_intent(2)),
            ]
            for call in calls:
                with pytest.raises(SchemaOutOfDate, match=REFUSED):
                    await call()
            assert [one.run.id for one in await new.list(Query())] == [an_intent(1).id]

    for count in (0, 1):
        with pytest.raises(SchemaOutOfDate, match=REFUSED):
            await make(count).open()
        with pytest.raises(SchemaOutOfDate, match=REFUSED):
            await make(count).open(ignore)  # nor does it migrate
    assert make(2).schema().current == make(2).schema().wanted


async def test_a_worker_with_older_code_keeps_its_result_until_it_is_stopped(
    make: Callable[[int], Store], caplog: pytest.LogCaptureFixture
) -> None:
    """The run does not end up blocked, and another worker with newer code finishes it."""
    registry = Registry()
    gate, begun = asyncio.Event(), asyncio.Event()

    @registry.workflow("shop.order.v1")
    async def order(ctx: Context) -> str:
        async def wait() -> str:
            begun.set()
            await gate.wait()
            return "done"

        return await ctx.step("wait", wait)

    old, new = Holdfast(store=make(1)), Holdfast(store=make(2))
    old.include(registry)
    new.include(registry)
    async with old:
        worker = old.worker(lease_seconds=1, grace_seconds=0)
        await worker.start()
        run = await old.start(order)
        await begun.wait()
        store = make(2)
        await store.open(ignore)
        await store.close()
        gate.set()
        await until("the worker has noticed", lambda: "made by a newer version of holdfast" in caplog.text)
        await worker.kill()
    async with new, new.worker(lease_seconds=1):
        assert await new.run(run.id).result() == "done"
        assert "blocked" not in [fact.event for fact in await new.run(run.id).audit()]


@pytest.mark.parametrize("count", [1, 2])
async def test_two_migrations_at_once_apply_each_step_once(make: Callable[[int], Store], count: int) -> None:
    async with opened(make(0)) as old:
        await start(old, *(an_intent(number) for number in range(1, 30)))

    stores = [make(count) for _ in range(4)]
    await asyncio.gather(*(store.open(ignore) for store in stores))
    found = stores[0].schema()
    for store in stores:
        await store.close()

    assert (found.current, found.pending) == (found.wanted, ())
    numbers = [step.number for step in found.applied]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == found.wanted
    async with opened(make(count)) as store:
        assert len(await store.list(Query())) == 29
