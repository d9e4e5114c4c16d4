"""Moving: runs move from one store to another, of any two kinds, and end as they would have ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import (
    Break,
    Context,
    Continue,
    Fatal,
    Holdfast,
    InvalidRequest,
    Registry,
    Retry,
    RunHandle,
    RunState,
    step_info,
)
from holdfast.app import session_of
from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.core.commands import OfferTypes, PutSchedules, RegisterFlow
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.model import Schedule, TypeOffer
from holdfast.core.ports import Store
from holdfast.core.questions import ListFlows, ListSchedules, ListTypes
from holdfast.core.states import ENDS
from holdfast.core.transfer import Dump
from holdfast.engine import transfers
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Harness
from holdfast.testing.contract.arrange import transfer_of
from holdfast.testing.contract.flow import a_flow
from tests.plugin.tiers import params
from tests.postgres import Databases
from tests.redis import Namespaces, beside
from tests.rows import each_row
from tests.stage import Stage, lent

STORES = ("memory", "sqlite", "postgres", "redis")
PAIRS = [(source, target) for source in STORES for target in STORES]
FEW = [("memory", "sqlite"), ("sqlite", "postgres"), ("postgres", "redis"), ("redis", "sqlite")]

Lines = list[bytes]


@pytest.fixture(params=params(short=FEW, long=(pair for pair in PAIRS if pair not in FEW)), ids="-to-".join)
def stages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Stage, Stage]]:
    """Two stores for each pair of kinds, with one clock."""
    with two_stages(request, tmp_path, *request.param) as both:
        yield both


@pytest.fixture(params=FEW, ids="-to-".join)
def few_stages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Stage, Stage]]:
    """Two stores; each kind is once the source and once the target."""
    with two_stages(request, tmp_path, *request.param) as both:
        yield both


@contextmanager
def two_stages(request: pytest.FixtureRequest, folder: Path, source: str, target: str) -> Iterator[tuple[Stage, Stage]]:
    databases: Databases | None = None
    namespaces: Namespaces | None = None
    if "postgres" in (source, target):
        databases = request.getfixturevalue("postgres_databases")
    if "redis" in (source, target):
        namespaces = request.getfixturevalue("redis_namespaces")
    with ExitStack() as stack:
        source_url = stack.enter_context(lent(source, databases, namespaces))
        if source == target == "redis":
            target_url = beside(source_url, "target")
        else:
            target_url = stack.enter_context(lent(target, databases, namespaces))
        (folder / "source").mkdir()
        (folder / "target").mkdir()
        first = Stage(source, folder / "source", source_url)
        second = Stage(target, folder / "target", target_url)
        second.clock = first.clock
        second._memory._clock = first.clock
        yield first, second


@asynccontextmanager
async def both(
    stages: tuple[Stage, Stage], app: Registry, *, has_endless_bodies: bool = False
) -> AsyncIterator[tuple[Harness, Harness]]:
    source, target = stages
    async with source.harness(app, has_endless_bodies=has_endless_bodies) as h, target.harness(app) as there:
        yield h, there


async def exported(h: Holdfast, **options: Any) -> Lines:
    return [line async for line in h.export(**options)]


async def moved(h: Holdfast, there: Holdfast, **options: Any) -> None:
    report = await there.import_(await exported(h, **options))
    assert report.refused == []


async def everything(h: Holdfast) -> list[Dump]:
    ids = [info.id async for info in h.list()]
    dumps = await transfer_of(session_of(h).store).dump(sorted(ids))
    assert len(dumps) == len(ids)
    return list(dumps)


# A shop in which every run waits for something different.


app_of_shop = Registry()


def a_shop() -> Registry:
    return app_of_shop


@app_of_shop.workflow("sleeper")
async def sleeper(ctx: Context) -> str:
    await ctx.step("before", lambda: None)
    await ctx.sleep(3600)
    return "awake"


@app_of_shop.workflow("listener")
async def listener(ctx: Context) -> list[Any]:
    return [await ctx.receive("a"), await ctx.receive("b"), await ctx.receive("c", timeout=86_400)]


@app_of_shop.workflow("subscriber")
async def subscriber(ctx: Context) -> list[Any]:
    return [await ctx.wait_event("news") for _ in range(4)]


@app_of_shop.workflow("taker")
async def taker(ctx: Context) -> list[Any]:
    return [await ctx.wait_event("jobs") for _ in range(2)]


@app_of_shop.workflow("grower")
async def grower(ctx: Context, minutes: int) -> int:
    await ctx.sleep(minutes * 60)
    return minutes


@app_of_shop.workflow("parent")
async def parent(ctx: Context) -> list[int]:
    first = await ctx.call(grower, 5)
    return [first, *await ctx.map(grower, [10, 20, 30, 40], limit=2)]


@app_of_shop.workflow("stubborn")
async def stubborn(ctx: Context) -> str:
    return await ctx.step("attempt", _third_time, retry=Retry(max_attempts=5, initial=600, factor=1, jitter=0))


@app_of_shop.workflow("looper")
async def looper(ctx: Context, count: int = 0) -> int:
    await ctx.sleep(150)
    return count if count == 5 else await ctx.continue_as_new(count + 1)


@app_of_shop.workflow("follower")
async def follower(ctx: Context) -> list[Any]:
    async def heard(inner: Context, so_far: list[Any]) -> Continue[list[Any]] | Break[list[Any]]:
        so_far = [*so_far, await inner.wait_event("news")]
        return Break(so_far) if len(so_far) == 4 else Continue(so_far)

    return await ctx.loop("news", heard, list[Any](), keep=1, every=1)


@app_of_shop.workflow("reader")
async def reader(ctx: Context, so_far: list[Any] | None = None) -> list[Any]:
    so_far = [*(so_far or []), await ctx.wait_event("news")]
    return so_far if len(so_far) == 4 else await ctx.continue_as_new(so_far)


@app_of_shop.workflow("ended")
async def ended(ctx: Context) -> dict[str, Any]:
    ctx.set_value("stage", "done")
    return {"a": [1, None, "☃"]}


@app_of_shop.workflow("failed")
async def failed(ctx: Context) -> None:
    await ctx.step("charge", _refuse)


def _third_time() -> str:
    if step_info().attempt < 3:
        raise RuntimeError("not yet")
    return "at last"


def _refuse() -> None:
    raise Fatal("refused")


SHOP = (
    "sleeper",
    "listener",
    "subscriber",
    "taker",
    "parent",
    "stubborn",
    "looper",
    "follower",
    "reader",
    "ended",
    "failed",
)


async def open_shop(h: Harness) -> dict[str, str]:
    """Start a run of each kind, let each make some progress, and return their ids."""
    await h.topics.set("jobs", mode="queue")
    runs = {name: (await h.start(name, {}, key=f"key of {name}", priority=50)).id for name in SHOP}
    await h.start("sleeper", {}, delay=7200, key="later")
    await h.settle()
    await h.run(runs["listener"]).send("a", 1, id="m1")
    await h.run(runs["listener"]).send("c", 3)
    for number in range(2):
        await h.emit("news", number)
    await h.emit("jobs", "first")
    await h.emit("other", "kept for whoever comes")
    await h.settle()
    await h.advance(400)
    return runs


async def close_shop(h: Harness, runs: dict[str, str]) -> dict[str, Any]:
    """Let all runs end, and return how they ended."""
    await h.run(runs["listener"]).send("b", 2)
    await h.run(runs["listener"]).send("a", "again", id="m1")  # a known message id
    for number in range(2, 4):
        await h.emit("news", number)
    await h.emit("jobs", "second")
    await h.advance(90_000)
    ends: dict[str, Any] = {}
    async for info in h.list():
        ends[info.key or info.type] = (info.state, info.result, str(info.error), info.generation, info.tags)
    return ends


async def test_runs_reach_the_same_ends_as_those_that_stayed(stages: tuple[Stage, Stage], tmp_path: Path) -> None:
    unmoved = Stage("memory", tmp_path)
    async with unmoved.harness(a_shop()) as h:
        expected = await close_shop(h, await open_shop(h))
    async with both(stages, a_shop()) as (h, there):
        runs = await open_shop(h)

        await moved(h, there)

        assert await close_shop(there, runs) == expected
        assert {state for state, *_ in expected.values()} <= ENDS
        assert {info.state async for info in h.list() if not info.state.is_end} == {RunState.PAUSED}


async def test_imported_runs_are_unchanged_except_that_they_resume(stages: tuple[Stage, Stage]) -> None:
    async with both(stages, a_shop()) as (h, there):
        await open_shop(h)
        await h.stop_worker()
        await there.stop_worker()
        lines = await exported(h)
        before = await everything(h)
        (keep,) = [line for line in lines if b'"kept for whoever comes' in line]
        assert b'"line":"event"' in keep

        report = await there.import_(lines)

        async for info in there.list():
            await there.run(info.id).pause()
        after = {dump.run.id: dump for dump in await everything(there)}
        assert (report.known, report.left, report.restored) == (0, 0, len(before))
        for dump in before:
            new = after[dump.run.id]
            assert (dump.entries, dump.inbox, dump.waits) == (new.entries, new.inbox, new.waits)
            assert (dump.values, dump.receipts, dump.replies) == (new.values, new.receipts, new.replies)
            assert dump.audit == new.audit[: len(dump.audit)]
            if dump.run.state.is_end:
                assert dump == new


async def test_runs_move_to_another_store_and_back(few_stages: tuple[Stage, Stage], tmp_path: Path) -> None:
    app = a_shop()
    async with both(few_stages, app) as (h, there), Stage("memory", tmp_path).harness(app) as expected:
        ends = await close_shop(expected, await open_shop(expected))
        runs = await open_shop(h)
        await moved(h, there)
        await there.settle()
        home = Stage("sqlite" if few_stages[0].kind == "sqlite" else "memory", tmp_path / "target")
        home.clock = h.clock
        home._memory._clock = h.clock
        async with home.harness(app) as back:
            await moved(there, back)

            assert await close_shop(back, runs) == ends


async def test_a_run_that_diverged_heals_where_the_code_fits(few_stages: tuple[Stage, Stage]) -> None:
    app = Registry()
    is_changed = [False]

    @app.workflow
    async def shop(ctx: Context) -> str:
        await ctx.step("new" if is_changed[0] else "old", lambda: None)
        return str(await ctx.receive("go"))

    async with both(few_stages, app) as (h, there):
        run = await h.start(shop)
        await h.settle()
        is_changed[0] = True
        await run.wake()
        await h.settle()
        assert (await run.info()).state is RunState.BLOCKED
        is_changed[0] = False

        await moved(h, there)

        await there.run(run.id).send("go", "on")
        assert await there.run(run.id).result() == "on"
        assert [entry.location for entry in await there.run(run.id).history()] == ["old", "receive:go"]


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_moved_run_continues_its_rollback(few_stages: tuple[Stage, Stage], *, is_given_up: bool) -> None:
    app = Registry()
    is_open = [False]

    def close(_: Any) -> None:
        if not is_open[0]:
            raise RuntimeError("the bank is closed")

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.step("book", lambda: "room", undo=close)
        raise Fatal("no luck")

    async with both(few_stages, app) as (h, there):
        run = await h.start(shop)
        await h.settle()
        if is_given_up:
            await h.advance(3600)
        expected = RunState.BLOCKED if is_given_up else RunState.ROLLING_BACK
        assert (await run.info()).state is expected
        is_open[0] = True

        await moved(h, there)

        await there.settle()
        if is_given_up:
            assert (await there.run(run.id).info()).state is RunState.BLOCKED
            await there.run(run.id).recover()
        await there.advance(3600)
        info = await there.run(run.id).info()
        assert (info.state, info.error and info.error.message) == (RunState.FAILED, "no luck")


async def test_the_rounds_of_a_run_move_with_it(few_stages: tuple[Stage, Stage]) -> None:
    app, keys = Registry(), list[str]()

    def note(_result: Any = None) -> None:
        keys.append(step_info().idempotency_key.split(":", 1)[1])

    @app.workflow
    async def shop(ctx: Context) -> None:
        await ctx.receive("go")
        await ctx.step("charge", note, undo=note)
        raise Fatal("no luck")

    async with both(few_stages, app) as (h, there):
        run = await h.start(shop)
        await run.send("go")
        await h.settle()
        await run.rewind("receive:go")
        await run.pause()

        await moved(h, there)

        await there.run(run.id).resume()
        await there.settle()
        assert keys == ["1:charge", "1:~undo/charge", "1:charge:2", "1:~undo/charge:2"]


async def test_a_run_that_a_person_paused_stays_paused(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, there):
        run: RunHandle[Any] = await h.start("sleeper", {})
        await h.settle()
        await run.pause("by a person")

        await moved(h, there)

        assert (await there.run(run.id).info()).state is RunState.PAUSED
        assert "(by a person)" in await there.run(run.id).explain()
        await there.run(run.id).resume()
        assert await there.run(run.id).result() == "awake"


async def test_a_worker_gives_up_a_busy_run_before_it_is_exported(few_stages: tuple[Stage, Stage]) -> None:
    app = Registry()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def body() -> str:
        begun.set()
        await may_end.wait()
        return "slow"

    @app.workflow
    async def shop(ctx: Context) -> str:
        slow = await ctx.step("slow", body)
        return slow + await ctx.step("quick", lambda: " and quick")

    async with both(few_stages, app) as (h, there):
        run = await h.start(shop)
        await begun.wait()
        waited: list[int] = []

        def progress(what: str, count: int) -> None:
            if what == "waiting for":
                waited.append(count)
                may_end.set()

        await moved(h, there, progress=progress)

        assert waited[0] == 1
        assert (await run.info()).state is RunState.PAUSED
        assert await there.run(run.id).result() == "slow and quick"


async def test_a_run_that_its_worker_does_not_give_up_in_time_is_left_behind_with_its_family(
    few_stages: tuple[Stage, Stage],
) -> None:
    app = Registry()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        begun.set()
        await may_end.wait()

    @app.workflow
    async def child(ctx: Context) -> None:
        await ctx.step("slow", body)

    @app.workflow
    async def parent(ctx: Context) -> str:
        await ctx.call(child)
        return "grown"

    @app.workflow
    async def other(ctx: Context) -> str:
        return str(await ctx.receive("go"))

    async with both(few_stages, app, has_endless_bodies=True) as (h, there):
        family, stranger = await h.start(parent), await h.start(other)
        await begun.wait()
        await h.settle()
        export = h.export(timeout=0)
        lines = [line async for line in export]

        report = await there.import_(lines)

        assert {run.id for run in export.left} == {info.id async for info in h.list() if info.id != stranger.id}
        assert (report.restored, report.left) == (1, 2)
        may_end.set()
        await h.settle()

        await moved(h, there)

        assert await there.run(family.id).result() == "grown"
        await there.run(stranger.id).send("go", "on")
        assert await there.run(stranger.id).result() == "on"


async def test_a_run_whose_worker_died_is_reported_to_need_another_worker(tmp_path: Path) -> None:
    async with Stage("memory", tmp_path).harness(Registry()) as h:
        run = await h.start("elsewhere.v1", {})
        types = ("elsewhere.v1",)
        await session_of(h).store.claim(
            ClaimRequest(id="c", worker="dead", types=types, limit=1, lease=SECOND, python="3.11")
        )

        held, gone = h.export(timeout=0), h.export(timeout=0)
        assert len([line async for line in held]) == 2
        await h.advance(1)
        assert len([line async for line in gone]) == 2

        assert [one.why for one in held.left] == ["its worker did not release it in time"]
        assert [one.id for one in gone.left] == [run.id]
        assert gone.left[0].why.startswith("its worker has died; start a worker")


async def test_a_filter_takes_live_families_whole_and_leaves_others_alone(few_stages: tuple[Stage, Stage]) -> None:
    app = Registry()

    @app.workflow("shop.child")
    async def child(ctx: Context) -> str:
        return str(await ctx.receive("go"))

    @app.workflow("shop.parent")
    async def parent(ctx: Context) -> str:
        return "my child says " + await ctx.call(child)

    async with both(few_stages, app) as (h, there):
        family, stranger = await h.start(parent, key="p"), await h.start(parent)
        await h.settle()
        export = h.export(key="p")
        lines = [line async for line in export]
        (child_id,) = export.taken_along

        await there.import_(lines)

        assert (await stranger.info()).state is RunState.SUSPENDED
        assert (await h.run(child_id).info()).state is RunState.PAUSED
        await there.run(child_id).send("go", "hello")
        assert await there.run(family.id).result() == "my child says hello"


async def test_an_export_can_be_limited_to_ended_runs(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, there):
        await open_shop(h)
        ended = {info.id async for info in h.list(state=ENDS)}

        await moved(h, there, live=False)

        assert {info.id async for info in there.list()} == ended
        assert [info async for info in h.list(state="paused")] == []
        assert await there.topics.list() == []


async def test_an_import_can_be_repeated(few_stages: tuple[Stage, Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "RUNS_AT_ONCE", 3)
    async with both(few_stages, a_shop()) as (h, there):
        runs = await open_shop(h)
        lines = await exported(h)
        with pytest.raises(InvalidRequest, match=r"cut off after line \d+.*\n.*none was resumed"):
            await there.import_(lines[:-1])
        assert {info.state async for info in there.list() if not info.state.is_end} == {RunState.PAUSED}

        imported = len([info async for info in there.list()])
        report = await there.import_(lines)
        await there.run(runs["listener"]).cancel()
        again = await there.import_(lines)

        assert (report.restored + imported, report.known) == (sum(b'"line":"run"' in line for line in lines), imported)
        assert imported >= 3
        assert report.resumed == sum(b'"state":"paused"' in line for line in lines)
        assert again.was_finished
        assert (await there.run(runs["listener"]).info()).state is RunState.CANCELLED
        assert not [info async for info in there.list(state="paused")]


async def test_importing_into_the_source_store_restores_its_runs(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, _):
        runs = await open_shop(h)
        await h.run(runs["sleeper"]).pause("by a person")
        lines = await exported(h)

        report = await h.import_(lines)

        paused = {info.id async for info in h.list(state="paused")}
        assert paused == {runs["sleeper"]}
        assert (report.restored, report.refused) == (0, [])


async def test_an_older_copy_does_not_replace_a_newer_one(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, there):
        runs = await open_shop(h)
        await moved(h, there)
        await close_shop(there, runs)

        report = await h.import_(await exported(there))

        refused = {run.id for run in report.refused}
        assert refused == {info.id async for info in h.list(state="paused")}
        assert "import the file into an empty store" in report.refused[0].why


async def test_a_key_conflict_is_reported_with_both_ids(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, there):
        mine: RunHandle[Any] = await h.start("ended", {}, key="order-17")
        other: RunHandle[Any] = await there.start("ended", {}, key="order-17")
        await h.settle()

        report = await there.import_(await exported(h))

        assert [run.why for run in report.refused] == [
            f"run {mine.id} has the key 'order-17', which belongs to run {other.id} here"
        ]


async def test_rules_of_topics_and_types_move_unless_the_target_has_its_own(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, there):
        await h.topics.set("jobs", mode="queue", max_pending=5)
        await h.topics.set("a*", retention=60)
        await there.topics.set("jobs", max_pending=7)
        await h.types.set("looper", concurrency=2, retention=86_400)
        await h.types.set("sleeper", enabled=False)
        await there.types.set("sleeper", concurrency=9)

        await moved(h, there)

        rules = {rule.name: rule for rule in await session_of(there).store.catalog(ListTypes())}
        assert (rules["looper"].concurrency, rules["looper"].retention) == (2, 86_400 * SECOND)
        assert (rules["sleeper"].concurrency, rules["sleeper"].is_enabled) == (9, True)
        assert [(topic.name, topic.max_pending) for topic in await there.topics.list()] == [("a*", 10_000), ("jobs", 7)]


async def test_flows_move_once_and_before_the_rules(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, there):
        await h.types.set("looper", concurrency=2)
        source, target = session_of(h).store, session_of(there).store
        for letter in "aba":
            await source.apply(RegisterFlow(definition=a_flow(letter, "flow.v1"), by="ann"))
        lines = await exported(h)

        reports = [await there.import_(lines) for _ in range(2)]
        reports.append(await there.import_(await exported(h)))

        assert [report.flows for report in reports] == [3, 0, 0]
        kinds = [json.loads(line)["line"] for line in lines]
        assert kinds[1:4] == ["flow"] * 3
        question = ListFlows(with_texts=True)
        assert await _unused(target, question) == await _unused(source, question)


async def _unused(store: Store, question: ListFlows) -> list[FlowDefinition]:
    return [replace(flow, used_at=0) for flow in await store.catalog(question)]


async def test_nothing_is_imported_if_a_flow_is_code_in_the_target(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, there):
        await h.topics.set("jobs", mode="queue")
        target = session_of(there).store
        await session_of(h).store.apply(RegisterFlow(definition=a_flow("a", "flow.v1")))
        offer = TypeOffer(name="flow.v1", runtime="python")
        await target.apply(OfferTypes(worker="host-1", offers=[offer]))

        with pytest.raises(InvalidRequest, match=r"'flow\.v1' is code: worker 'host-1'.*\nNothing was imported"):
            await there.import_(await exported(h))

        assert await target.catalog(ListFlows()) == []
        assert await there.topics.list() == []


async def test_schedules_move_with_their_state(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, there):
        await session_of(h).store.apply(
            PutSchedules(schedules=[Schedule(name="hourly", type="ended", payload="{}", every=3600 * SECOND)])
        )
        await h.advance(7200)
        before = list(await session_of(h).store.catalog(ListSchedules()))

        report = await there.import_(await exported(h))

        assert report.schedules == 1
        assert list(await session_of(there).store.catalog(ListSchedules())) == before
        assert await exported(h, type="ended") != []
        assert not [line for line in await exported(h, type="ended") if b'"line":"schedule"' in line]


async def test_a_message_that_arrives_while_the_run_is_paused_moves_with_it(few_stages: tuple[Stage, Stage]) -> None:
    async with both(few_stages, a_shop()) as (h, there):
        run: RunHandle[Any] = await h.start("listener", {})
        await h.settle()
        export = aiter(h.export())
        lines = [await anext(export)]  # the export has paused all runs
        await run.send("a", 1)
        await h.emit("news", "emitted meanwhile")
        lines += [line async for line in export]

        await there.import_(lines)

        for name in "bc":
            await there.run(run.id).send(name, name)
        assert await there.run(run.id).result() == [1, "b", "c"]


@each_row(
    ("change", "message"),
    [
        (lambda lines: [], "there is nothing to import"),
        (lambda lines: lines[1:], "line 1 is not a header"),
        (lambda lines: [lines[0], *lines], "line 2 is a second header"),
        (lambda lines: [*lines, lines[1]], r"line \d+ comes after the end of the export"),
        (lambda lines: lines[:3] + lines[4:], r"line \d+ says that the file has .* lines were lost or added"),
        (lambda lines: [*lines[:3], lines[3][:20], *lines[4:]], "line 4 is not JSON"),
        (lambda lines: [*lines[:3], b"garbage\n", *lines[4:]], "line 4 is not JSON: 'garbage'"),
        (lambda lines: [*lines[:3], b"\xff\xfe\n", *lines[4:]], "line 4 is no"),
        (
            lambda lines: [*lines[:3], b'{"line": "surprise"}\n'],
            "line 4 is not valid: Invalid value",
        ),
        (lambda lines: [lines[0], lines[1].replace(b'"mode"', b'"modes"').replace(b'"queue"', b"1")], "line"),
        (lambda lines: [lines[0].replace(b'"format":1', b'"format":2')], "line 1 has format 2.*upgrade"),
        (lambda lines: [lines[0].replace(b'"Run":["id"', b'"Run":["wings"')], "line 1 names Run.wings"),
        (lambda lines: [lines[0].replace(b'"last_event":4', b'"last_event":-4')], "number -4, which is out of range"),
        (
            lambda lines: [line.replace(b'"state":"paused"', b'"state":"pending"') for line in lines],
            "cannot be imported: run .* is pending",
        ),
        (
            lambda lines: [line.replace(b'"payload":"{}"', b'"payload":"{"') for line in lines],
            r"line \d+ has a value that is not JSON",
        ),
        (
            lambda lines: [line.replace(b'"payload":"{}"', b'"payload":"1e400"') for line in lines],
            r"line \d+ has a value that is not JSON \(Number out of range\)",
        ),
        (
            lambda lines: [line.replace(b'"type":"', b'"type":"\\u202e') for line in lines],
            r"line \d+ cannot be imported: a type name must not contain U\+202E",
        ),
    ],
)
async def test_an_invalid_line_is_refused_with_its_number(tmp_path: Path, change: Any, message: str) -> None:
    stage, other = Stage("memory", tmp_path), Stage("memory", tmp_path)
    async with both((stage, other), a_shop()) as (h, there):
        await open_shop(h)
        lines = await exported(h)

        with pytest.raises(InvalidRequest, match=message):
            await there.import_(change(lines))

        assert {info.state async for info in there.list()} <= ENDS | {RunState.PAUSED}


def _twice(dump: dict[str, Any], part: str) -> None:
    dump[part] = dump[part] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda dump: dump["run"].update(arrivals=0), r"had 0 arrivals, but its inbox has the numbers \[1\]"),
        (lambda dump: dump["run"].update(finished_at=5), "is paused and has an end time"),
        (lambda dump: dump["run"].update(state="failed"), "is failed and has no end time"),
        (lambda dump: _twice(dump, "inbox"), r"its inbox has the numbers \[1, 1\]"),
        (lambda dump: _twice(dump, "entries"), "has two entries at one location"),
        (lambda dump: dump["inbox"][0].update(ref="abc"), "an event with the invalid number 'abc'"),
        (lambda dump: dump["inbox"][0].update(ref=str(2**60)), "an event with the invalid number '1152"),
        (lambda dump: dump["entries"][0].update(kind="event"), "an event in its history that cannot be decoded"),
        (lambda dump: dump["run"].update(payload="[" * 100_000), "has a value that is not JSON"),
        (lambda dump: dump["run"].update(id="a\nb"), r"a run id must not contain U\+000A"),
        (lambda dump: dump["run"].update(key="a\u200eb"), r"a key must not contain U\+200E"),
        (lambda dump: dump["run"].update(tags={"a\ufeff": "b"}), r"a tag's name must not contain U\+FEFF"),
        (lambda dump: dump["inbox"][0].update(name="a\u2028b"), r"must not contain U\+2028"),
    ],
    ids=range(13),
)
async def test_an_impossible_run_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    """If such a run were written, the worker that claims it could not write anything."""
    app = Registry()

    @app.workflow("w")
    async def workflow(ctx: Context) -> None:
        await ctx.step("one", lambda: 1)
        await ctx.wait_event("news")

    stage, other = Stage("memory", tmp_path), Stage("memory", tmp_path)
    async with both((stage, other), app) as (h, there):
        run = await h.start(workflow)
        await h.settle()
        await run.pause()
        await h.emit("news", 1)
        (header, line, *rest) = await exported(h)
        changed = json.loads(line)
        change(changed["dump"])

        with pytest.raises(InvalidRequest, match=message):
            await there.import_([header, json.dumps(changed).encode(), *rest])

        assert [info async for info in there.list()] == []


async def test_a_store_without_exports_refuses_before_it_pauses_anything() -> None:
    class Small(MemoryStore):
        transfer = None  # type: ignore[assignment]

    async with Holdfast(store=Small()) as hf:
        run = await hf.start("a.v1", {})

        with pytest.raises(InvalidRequest, match=r"hf\.export: Small cannot export or import runs"):
            [line async for line in hf.export()]
        assert (await run.info()).state is RunState.PENDING
