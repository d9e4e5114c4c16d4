"""Versions of flows: which program a run executes, how workers find it, and what happens when they cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import InvalidRequest, Registry, RunState
from holdfast.core.checkpoint import Claimed, ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.core.entries import FLOW_LOCATION
from holdfast.core.news import Hint
from holdfast.core.ports import Store
from holdfast.core.questions import ListFlows
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness
from tests.scenario.test_flows import program, register
from tests.scenario.test_moving import FEW, moved, two_stages
from tests.stage import Stage


async def version(h: Harness, number: int) -> None:
    await h.flows.register(program(f"m = await receive('go')\nreturn [{number}, m]"), type="flow")


@pytest.mark.every_store
async def test_runs_keep_the_version_that_was_newest_when_they_were_created(stage: Stage) -> None:
    async with stage.harness() as h:
        await version(h, 0)
        await h.advance(1)
        begun = await h.start("flow")
        later = await h.start("flow", delay=1_000)
        await h.settle()
        for number in range(1, 11):
            await h.advance(1)
            await version(h, number)
        await h.advance(1)
        newest = await h.start("flow")
        for run in (begun, later, newest):
            await run.send("go", "x")

        assert [await run.result() for run in (begun, later, newest)] == [[0, "x"], [0, "x"], [10, "x"]]


async def test_registration_and_start_at_the_same_instant_take_the_newest_version(stage: Stage) -> None:
    """A virtual clock stands still. The worker must not take what it read before the registration."""
    async with stage.harness() as h:
        found = []
        for number in range(3):
            await version(h, number)
            run = await h.start("flow")
            await run.send("go")
            await h.settle()
            found.append((await run.result())[0])

        assert found == [0, 1, 2]


async def test_worker_finds_a_flow_by_a_hint(stage: Stage) -> None:
    async with stage.harness() as h:
        await version(h, 1)
        run = await h.start("flow")
        await run.send("go")
        await h.settle()

        assert (await run.info()).state is RunState.SUCCEEDED


async def test_worker_without_hints_finds_a_flow_within_a_second(stage: Stage) -> None:
    async with stage.harness(wrap=lambda store: as_store(DeafStore(store))) as h:
        await h.stop_worker()
        async with h._local_workers.make(clock=h.clock, poll=SECOND, prune_every=None, has_heart=False) as worker:
            h._worker = worker  # so that the harness waits for it
            await h.advance(5)
            await version(h, 1)
            run = await h.start("flow")
            await run.send("go")
            await h.advance(1)
            await h.advance(1)

            assert (await run.info()).state is RunState.SUCCEEDED


async def test_worker_asks_for_a_flow_that_it_found_while_a_claim_failed(stage: Stage) -> None:
    """The claim is repeated with the types that the worker knew before."""
    faulty: list[FaultyStore] = []

    def wrap(store: Store) -> Store:
        faulty.append(FaultyStore(store))
        faulty[0].fail(2, when="after")  # the first claim: the worker has registered before
        return faulty[0]

    app = Registry()

    @app.task("other")
    async def other() -> None: ...

    async with stage.harness(app, wrap=wrap) as h:
        await version(h, 1)
        run = await h.start("flow")
        await run.send("go")
        await h.advance(5)

        assert faulty[0].calls[1:3] == ["claim", "claim"]
        assert (await run.info()).state is RunState.SUCCEEDED


async def test_worker_finds_a_flow_that_is_registered_while_it_starts(stage: Stage) -> None:
    """It reads the flows before it listens to hints, and the registration comes in between."""
    late: list[LateStore] = []

    def wrap(store: Store) -> Store:
        late.append(LateStore(store))
        return as_store(late[0])

    async with stage.harness(wrap=wrap) as h:
        await h.stop_worker()

        async def register_and_start() -> None:
            await version(h, 1)
            await (await h.start("flow", id="run")).send("go")

        late[0].action = register_and_start
        await h.start_worker()
        await h.advance(5)

        assert (await h.run("run").info()).state is RunState.SUCCEEDED


async def test_worker_without_flows_leaves_them_alone(stage: Stage) -> None:
    async with stage.harness() as h:
        await h.stop_worker()
        async with h._local_workers.make(clock=h.clock, poll=None, prune_every=None, has_heart=False, flows=False):
            await version(h, 1)
            run = await h.start("flow")
            await run.send("go")
            await h.advance(10)

            assert (await run.info()).state is RunState.PENDING


async def test_worker_with_patterns_executes_only_flows_that_match(stage: Stage) -> None:
    async with stage.harness() as h:
        await h.stop_worker()
        options = {"clock": h.clock, "poll": None, "prune_every": None, "has_heart": False}
        async with h._local_workers.make(types=["shop.*"], **options) as worker:
            h._worker = worker  # so that the harness waits for it
            for type in ("shop.order", "bank.order"):
                await register(h, "return 1", type=type)
            ours, theirs = await h.start("shop.order"), await h.start("bank.order")
            await h.advance(10)

            assert (await ours.info()).state is RunState.SUCCEEDED
            assert (await theirs.info()).state is RunState.PENDING


# Conflicts of types


async def test_type_of_code_cannot_become_a_flow(stage: Stage) -> None:
    app = Registry()

    @app.task("shop.pay")
    async def pay() -> None: ...

    async with stage.harness(app), stage.harness() as other:
        with pytest.raises(InvalidRequest, match=r"'shop\.pay' is code: worker"):
            await register(other, "return 1", type="shop.pay")


async def test_worker_refuses_to_offer_code_for_a_flow(stage: Stage) -> None:
    app = Registry()

    @app.task("shop.pay")
    async def pay() -> None: ...

    async with stage.harness() as h:
        await register(h, "return 1", type="shop.pay")
        with pytest.raises(InvalidRequest, match=r"'shop\.pay' is a flow: its version"):
            async with stage.harness(app):
                pass


# Programs and snapshots that cannot be read


class DeafStore:
    """A store that gives no hints."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        return lambda: None


class LateStore:
    """A store in which something happens right after a worker has read the flows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.action: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def catalog(self, question: Any) -> Any:
        found = await self._store.catalog(question)
        if isinstance(question, ListFlows) and self.action is not None:
            action, self.action = self.action, None
            await action()
        return found


class SpoiledStore:
    """A store whose programs or snapshots are unreadable until they are repaired."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.program: str | None = None
        self.snapshot: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def catalog(self, question: Any) -> Any:
        found = await self._store.catalog(question)
        if self.program is not None and getattr(question, "with_texts", False):
            return [replace(one, program=self.program) for one in found]
        return found

    async def claim(self, request: ClaimRequest) -> Claimed:
        claimed = await self._store.claim(request)
        if self.snapshot is None:
            return claimed
        leases = []
        for lease in claimed.leases:
            entries = [replace(e, result=self.snapshot) if e.location == FLOW_LOCATION else e for e in lease.entries]
            leases.append(replace(lease, entries=tuple(entries)))
        return replace(claimed, leases=leases)


def as_store(wrapper: Any) -> Store:
    store: Store = wrapper
    return store


@pytest.mark.parametrize("text", ["", "{}", '{"instruction_set": 99}', "\\x00", "[1]"])
async def test_unreadable_program_blocks_the_run_until_it_is_repaired(stage: Stage, text: str) -> None:
    spoiled: list[SpoiledStore] = []

    def wrap(store: Store) -> Store:
        spoiled.append(SpoiledStore(store))
        return as_store(spoiled[0])

    async with stage.harness(wrap=wrap) as h:
        spoiled[0].program = text
        await version(h, 1)
        run = await h.start("flow")
        await run.send("go", "x")
        await h.settle()
        info = await run.info()
        assert info.state is RunState.BLOCKED
        assert "flow" in str(info.error)
        spoiled[0].program = None
        await h.advance(60)

        assert (await run.info()).state is RunState.SUCCEEDED


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"machine": {}, "position": 1, "stamp": 1}', "null"])
async def test_unreadable_snapshot_blocks_the_run_and_keeps_its_arrivals(stage: Stage, text: str) -> None:
    spoiled: list[SpoiledStore] = []

    def wrap(store: Store) -> Store:
        spoiled.append(SpoiledStore(store))
        return as_store(spoiled[0])

    async with stage.harness(wrap=wrap) as h:
        await version(h, 1)
        run = await h.start("flow")
        await h.settle()
        spoiled[0].snapshot = text
        await run.send("go", "x")
        await h.settle()
        info = await run.info()
        assert info.state is RunState.BLOCKED
        assert "snapshot" in str(info.error)
        spoiled[0].snapshot = None
        await h.advance(60)

        assert await run.result() == [1, "x"]


# Moving to another store


@pytest.fixture(params=FEW, ids="-to-".join)
def stages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Stage, Stage]]:
    with two_stages(request, tmp_path, *request.param) as both:
        yield both


async def test_moved_runs_keep_their_versions_and_their_state(stages: tuple[Stage, Stage]) -> None:
    source, target = stages
    async with source.harness() as h, target.harness() as there:
        await version(h, 1)
        await h.advance(1)
        begun, later = await h.start("flow"), await h.start("flow", delay=100)
        await h.settle()
        await h.advance(1)
        await version(h, 2)
        await h.advance(1)
        newest = await h.start("flow", delay=100)
        await begun.send("go", "kept")
        await h.settle()
        waiting = await h.start("flow")
        await h.settle()
        await moved(h, there)
        for run in (later, newest, waiting):
            await there.run(run.id).send("go", "moved")

        assert await there.run(begun.id).result() == [1, "kept"]
        found = [await there.run(run.id).result() for run in (later, newest, waiting)]
        assert found == [[1, "moved"], [2, "moved"], [2, "moved"]]


async def test_next_generation_of_a_fork_keeps_the_version_of_the_fork(stage: Stage) -> None:
    text = "async def main(n=0):\n    return [{0}, n] if n else await continue_as_new(n=await receive('go'))"
    async with stage.harness() as h:
        await h.flows.register(text.format(1), type="flow")
        run = await h.start("flow")
        await h.settle()
        await h.flows.register(text.format(2), type="flow")
        fork = await run.fork("@turn/1")
        await fork.send("go", 7)

        assert await fork.result() == [1, 7]
