"""Blocking callers: `hf.sync` in threads without an event loop, beside a worker that has one."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Context,
    Holdfast,
    InvalidRequest,
    KeyConflict,
    Retry,
    RunCancelled,
    RunFailed,
    RunHandle,
    RunNotFound,
    RunState,
    Signal,
    StoreUnavailable,
    SyncContext,
)
from holdfast.engine.controls import Selection, SyncSelection
from holdfast.engine.namespaces import DeadLetters, Schedules, Topics, Types, Workers
from holdfast.engine.private_loop import PAGE
from holdfast.engine.sync import Sync, SyncDeadLetters, SyncSchedules, SyncTopics, SyncTypes, SyncWorkers
from holdfast.stores.memory import MemoryStore
from holdfast.testing.harness import Harness
from holdfast.testing.patience import GUARD_SECONDS
from holdfast.typing import SyncRunHandle

DATABASES = ["sqlite", "postgres"]


def application(url: str) -> Holdfast:
    hf = Holdfast(url)

    @hf.step(retry=Retry(max_attempts=1))
    def halve(number: int) -> int:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number // 2

    @hf.workflow("half.v1")
    async def half(ctx: Context, number: int) -> int:
        return await halve(number)

    @hf.workflow("till.v1")
    async def till(ctx: Context) -> list[Any]:
        ctx.set_value("open", "yes")
        asked = await ctx.receive_message("ask")
        asked.reply(f"{asked.payload}!")
        return [await ctx.receive("pay"), await ctx.wait_event("night")]

    return hf


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/runs.db"
        case _:
            return str(request.getfixturevalue("postgres_store_url"))


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    hf = application(url)
    yield hf
    with ThreadPoolExecutor(1) as executor:  # a thread that never had an event loop
        executor.submit(lambda: asyncio.run(hf.close())).result()


on_each_store = pytest.mark.parametrize("url", ["memory", *DATABASES], indirect=True)
on_each_database = pytest.mark.parametrize("url", DATABASES, indirect=True)
in_memory = pytest.mark.parametrize("url", ["memory"], indirect=True)


@contextmanager
def working(hf: Holdfast) -> Iterator[None]:
    """Run a worker for the same Holdfast, on its own event loop in a thread."""
    ready, done = threading.Event(), threading.Event()

    async def work() -> None:
        async with hf.worker():
            ready.set()
            await asyncio.to_thread(done.wait)

    with ThreadPoolExecutor(1) as executor:
        worker = executor.submit(lambda: asyncio.run(work()))
        worker.add_done_callback(lambda _: ready.set())
        ready.wait()
        try:
            yield
        finally:
            done.set()
            worker.result()


# Runs


@on_each_store
def test_a_run_is_started_without_a_worker_and_its_result_awaited_beside_one(hf: Holdfast) -> None:
    run = hf.sync.start("half.v1", {"number": 8}, key="k")
    again = hf.sync.start("half.v1", {"number": 8}, key="k")

    assert (run.created, again.created, again.id) == (True, False, run.id)
    assert run.info().state is RunState.PENDING
    assert "no worker" in run.explain()
    with working(hf):
        assert run.result(GUARD_SECONDS) == 4
        assert hf.sync.execute("half.v1", {"number": 4}) == 2
        assert hf.sync.run(key="k").result() == 4
    assert [entry.location for entry in run.history()] == ["halve"]
    assert [fact.event for fact in run.audit()][:2] == ["created", "claimed"]


@on_each_store
def test_an_error_is_raised_in_the_calling_thread(hf: Holdfast) -> None:
    waiting = hf.sync.start("till.v1", key="k")

    with pytest.raises(TimeoutError):
        waiting.result(timeout=0.01)
    with pytest.raises(KeyConflict):
        hf.sync.start("half.v1", {"number": 2}, key="k")
    with pytest.raises(RunNotFound):
        hf.sync.run(key="other").info()
    with pytest.raises(InvalidRequest, match="unknown option"):
        hf.sync.start("half.v1", {"number": 2}, number=2)  # type: ignore[call-overload]
    with working(hf), pytest.raises(RunFailed, match="7 is odd"):
        hf.sync.execute("half.v1", {"number": 7})


@on_each_store
def test_a_run_answers_requests_gets_messages_and_is_woken_by_events(hf: Holdfast) -> None:
    with working(hf):
        run = hf.sync.start("till.v1")
        assert run.request("ask", "how much", timeout=GUARD_SECONDS) == "how much!"
        assert run.value("open") == "yes"
        run.send("pay", 5, id="m")
        run.send("pay", 5, id="m")
        hf.sync.emit("night", "dark")
        assert run.result(GUARD_SECONDS) == [5, "dark"]


@on_each_store
def test_runs_are_controlled(hf: Holdfast) -> None:
    run = hf.sync.start("half.v1", {"number": 8})

    assert (run.pause("lunch"), run.resume(), run.wake()) == (True, True, False)
    with working(hf):
        run.result(GUARD_SECONDS)
        fork = run.fork("halve", patch={})
        assert isinstance(fork, SyncRunHandle)
        assert fork.result(GUARD_SECONDS) == 4
    assert hf.sync.run(run.id).rewind("halve")
    assert run.info().state is RunState.PENDING
    assert run.cancel("enough")
    with pytest.raises(RunCancelled, match="enough"):
        run.result()
    assert run.recover()
    assert run.delete()
    with pytest.raises(RunNotFound):
        run.info()


@on_each_store
def test_many_runs_are_started_at_once_and_listed_one_by_one(hf: Holdfast) -> None:
    count = PAGE * 2 + 5
    runs = hf.sync.start_many("half.v1", ({"number": number} for number in range(count)), tags={"from": "here"})

    assert [info.id for info in hf.sync.list(tags={"from": "here"})] == [run.id for run in reversed(runs)]
    assert len(list(hf.sync.list(limit=PAGE))) == PAGE
    assert next(hf.sync.list()).id == runs[-1].id  # abandon the rest of the list
    assert list(hf.sync.list(state="succeeded")) == []


@on_each_store
def test_types_topics_and_schedules_are_managed(hf: Holdfast) -> None:
    sync = hf.sync
    sync.types.set("half.v1", concurrency=2)
    sync.topics.set("jobs", mode="queue")
    sync.schedules.put("nightly", "half.v1", {"number": 2}, cron="0 3 * * *")
    run = sync.start("till.v1", undelivered="dead_letter")
    run.send("pay", 5)
    run.cancel()

    assert [(type.name, type.concurrency) for type in sync.types.list()] == [("half.v1", 2), ("till.v1", None)]
    assert [topic.mode for topic in sync.topics.list()] == ["queue"]
    assert [schedule.name for schedule in sync.schedules.list()] == ["nightly"]
    assert sync.schedules.trigger("nightly").info().payload == {"number": 2}
    assert (sync.schedules.pause("nightly"), sync.schedules.remove("nightly")) == (True, True)
    (letter,) = sync.dead_letters.list()
    assert letter.payload == 5
    assert sync.dead_letters.purge([letter.number]) == 1


# Threads


@on_each_store
def test_any_number_of_threads_use_one_sync_api_at_once(hf: Holdfast) -> None:
    def client(number: int) -> list[int]:
        return [hf.sync.execute("half.v1", {"number": 2 * (number + one)}) for one in range(5)]

    with working(hf), ThreadPoolExecutor(8) as clients:
        assert list(clients.map(client, range(8))) == [[number + one for one in range(5)] for number in range(8)]
    assert [thread.name for thread in threading.enumerate()].count("holdfast-sync") == 1


@on_each_store
def test_hooks_get_signals_of_changes_made_by_blocking_callers(hf: Holdfast) -> None:
    heard: list[str] = []
    heard_async: list[str] = []

    @hf.on("run.*")
    def hook(signal: Signal) -> None:
        heard.append(signal.name)

    @hf.on("run.*")
    async def async_hook(signal: Signal) -> None:
        await asyncio.sleep(0)
        heard_async.append(signal.name)

    run = hf.sync.start("half.v1", {"number": 2})
    run.pause()
    run.cancel()
    hf.sync.close()  # waits for the hooks to finish

    assert heard == heard_async == ["run.started", "run.paused", "run.cancelled"]


@in_memory
def test_an_async_hook_gets_one_signal_at_a_time_from_all_loops(hf: Holdfast) -> None:
    calls: list[int] = []
    at_once: set[str | None] = set()

    @hf.on("run.started", "run.succeeded")
    async def hook(signal: Signal) -> None:
        at_once.add(signal.run_id)
        await asyncio.sleep(0)
        calls.append(len(at_once))
        at_once.clear()

    with working(hf):
        for number in range(50):
            hf.sync.execute("half.v1", {"number": 2 * number})
        asyncio.run(asyncio.sleep(0))
    hf.sync.close()

    assert set(calls) == {1}


# Where it must not block


@in_memory
async def test_a_blocking_call_on_a_running_event_loop_is_refused(hf: Holdfast) -> None:
    run = await asyncio.to_thread(lambda: hf.sync.start("till.v1"))
    refused: list[tuple[str, Callable[[], object]]] = [
        (r"`await hf.start\(…\)`", lambda: hf.sync.start("till.v1")),
        (r"`await hf.list\(…\)`", hf.sync.list),
        (r"`await hf.close\(…\)`", hf.sync.close),
        (r"`await hf.types.list\(…\)`", hf.sync.types.list),
        (r"`await hf.runs\(…\).cancel\(…\)`", hf.sync.runs(state="failed").cancel),
        (r"`async with hf`", hf.sync.__enter__),
        (r"`await run.result\(…\)`", run.result),
    ]

    for instead, call in refused:
        with pytest.raises(InvalidRequest, match=instead):
            call()
    assert [info.id async for info in hf.list()] == [run.id]
    await hf.close()  # with it, the blocking call
    assert "holdfast-sync" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_blocking_call_in_workflow_code_is_refused_and_works_in_a_step(kind: str) -> None:
    hf = Holdfast("memory://")

    @hf.workflow("wrong.v1")
    async def wrong(ctx: Context) -> None:
        hf.sync.start("other.v1")

    @hf.workflow("wrong_def.v1")
    def wrong_def(ctx: SyncContext) -> None:
        hf.sync.start("other.v1")

    @hf.workflow("right.v1")
    async def right(ctx: Context) -> str:
        return await ctx.step("start", lambda: hf.sync.start("other.v1", key="k").id)

    async with Harness(hf) as h:
        run = await h.start("wrong.v1" if kind == "async" else "wrong_def.v1")
        await h.settle()
        assert "only a step may do that" in await run.explain()
        assert "hf.start()" in await run.explain()
        started = await h.execute(right)
    async with hf:
        assert started == (await hf.run(key="k").info()).id


# Lifetime


@on_each_store
def test_closing_ends_the_thread_and_a_later_call_opens_it_again(hf: Holdfast) -> None:
    before = set(threading.enumerate())
    with hf.sync as sync:
        run = sync.start("till.v1", key="k")
        assert len(set(threading.enumerate()) - before) >= 1
    for thread in set(threading.enumerate()) - before:
        thread.join(GUARD_SECONDS)

    assert set(threading.enumerate()) <= before
    assert run.info().state is RunState.PENDING
    hf.sync.close()
    hf.sync.close()


@on_each_store
def test_callers_that_wait_while_the_api_is_closed_get_an_error(hf: Holdfast) -> None:
    run = hf.sync.start("till.v1")
    with ThreadPoolExecutor(4) as clients:
        waiting = [*(clients.submit(run.result) for _ in range(3)), clients.submit(run.request, "ask")]
        while not all(one.done() for one in waiting):
            hf.sync.close()  # more than once: a later caller opens it again

    assert all(isinstance(one.exception(), StoreUnavailable) for one in waiting)


@on_each_store
def test_the_api_can_be_closed_while_other_threads_use_it(hf: Holdfast) -> None:
    done = threading.Event()

    def client(number: int) -> int:
        count = 0
        while not done.is_set():
            try:
                hf.sync.start("half.v1", {"number": number}, key=f"{number}-{count}")
                count += 1
            except StoreUnavailable:
                pass  # try again
        return count

    with ThreadPoolExecutor(3) as clients:
        counts = [clients.submit(client, number) for number in range(3)]
        for _ in range(10):
            hf.sync.start("half.v1", {"number": 0})
            hf.sync.close()
        done.set()
        keys = {f"{number}-{one}" for number, count in enumerate(counts) for one in range(count.result(GUARD_SECONDS))}

    assert keys <= {info.key for info in hf.sync.list()}


def test_a_relative_file_url_does_not_follow_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hf = application("sqlite:///runs.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    with hf.sync:
        hf.sync.start("till.v1")

    assert (tmp_path / "runs.db").exists()


def test_a_given_store_is_used(tmp_path: Path) -> None:
    hf = Holdfast(store=MemoryStore())

    with hf.sync:
        assert hf.sync.start("till.v1").id == next(hf.sync.list()).id
    assert [info.type for info in asyncio.run(listed(hf))] == ["till.v1"]


async def listed(hf: Holdfast) -> list[Any]:
    return [info async for info in hf.list()]


# Your own transactions


@on_each_database
def test_a_run_exists_exactly_if_your_transaction_is_committed(hf: Holdfast) -> None:
    waiting = hf.sync.start("till.v1")

    def undone() -> None:
        with hf.sync.connection() as connection:
            hf.sync.start_in(connection, "half.v1", {"number": 2}, key="undone")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        undone()
    with hf.sync.connection() as connection:
        run = hf.sync.start_in(connection, "half.v1", {"number": 2}, key="done")
        hf.sync.send_in(connection, waiting, "ask", "a")
        waiting.send_in(connection, "pay", 1)
        hf.sync.emit_in(connection, "night")

    assert [info.key for info in hf.sync.list(type="half.v1")] == ["done"]
    with working(hf):
        assert run.result(GUARD_SECONDS) == 1
        hf.sync.emit("night")
        assert waiting.result(GUARD_SECONDS)[0] == 1


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_start_that_would_wait_for_the_transaction_it_is_made_in_is_refused(hf: Holdfast) -> None:
    hf.sync.start("half.v1", {"number": 2})

    with pytest.raises(InvalidRequest, match="start_in"), hf.sync.connection():
        hf.sync.start("half.v1", {"number": 2})


# Both APIs have the same methods


# These belong to the code or to the process, so blocking callers use the same ones.
NO_TWIN = {"workflow", "task", "step", "pipeline", "schedule", "include", "worker", "on", "metrics", "sync"}

TWINS = [
    (Holdfast, Sync),
    (RunHandle, SyncRunHandle),
    (Selection, SyncSelection),
    (Schedules, SyncSchedules),
    (Topics, SyncTopics),
    (Types, SyncTypes),
    (DeadLetters, SyncDeadLetters),
    (Workers, SyncWorkers),
]


def public(kind: type) -> dict[str, Any]:
    return {name: one for name, one in inspect.getmembers(kind) if not name.startswith("_") and name not in NO_TWIN}


@pytest.mark.parametrize(("kind", "twin"), TWINS)
def test_a_blocking_twin_has_the_same_methods_with_the_same_parameters(kind: type, twin: type) -> None:
    methods, blocking = public(kind), public(twin)

    assert blocking.keys() == methods.keys() | ({"created"} & blocking.keys())
    assert {name: parameters(one) for name, one in blocking.items() if inspect.isfunction(one)} == {
        name: parameters(one) for name, one in methods.items() if inspect.isfunction(one)
    }


def parameters(method: Callable[..., Any]) -> list[tuple[str, object, object]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
