"""The checks behind `holdfast doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.cli.commands.store import findings
from holdfast.core.clock import SECOND, Micros, SystemClock
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import WorkerRecord
from holdfast.core.ports import Finding
from holdfast.core.questions import Details, FindOrphans, Query, Stat
from holdfast.core.states import RunState
from holdfast.stores.memory import MemoryStore

A = TypeVar("A")

MINUTE: Micros = 60 * SECOND


class SickStore(MemoryStore):
    """A store that returns the answers that a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.known_workers: list[WorkerRecord] = []
        self.lost: list[str] = []
        self.ahead: Micros = 0
        self.known_runs: Sequence[Details] | None = None
        self.own: list[Finding] = []

    async def now(self) -> Micros:
        return SystemClock().now() + self.ahead

    async def workers(self) -> Sequence[WorkerRecord]:
        return self.known_workers

    async def stats(self, question: Stat[A]) -> A:
        is_about_orphans = isinstance(question, FindOrphans)
        return cast("A", self.lost) if is_about_orphans else await super().stats(question)

    async def list(self, query: Query) -> Sequence[Details]:
        return self.known_runs if self.known_runs is not None else await super().list(query)

    async def check(self) -> Sequence[Finding]:
        return self.own


async def examined(store: SickStore) -> dict[str, list[Finding]]:
    """Return the findings by subject."""
    found: dict[str, list[Finding]] = {}
    async with Holdfast("memory://", store=store) as hf:
        for finding in await findings(hf):
            found.setdefault(finding.subject, []).append(finding)
    return found


def worker(*, silent: Micros = 0) -> WorkerRecord:
    at = SystemClock().now() - silent
    return WorkerRecord(
        id="w1", name="wally", host="h", pid=7, types=("a.b.v1",), concurrency=1, started_at=at, heartbeat_at=at
    )


async def run(store: MemoryStore) -> Details:
    async with Holdfast("memory://", store=store) as hf:
        started = await hf.start("a.b.v1", {})
        details = await store.get(started.id)
    assert details is not None
    return details


async def test_an_empty_store_with_a_worker_is_in_order() -> None:
    store = SickStore()
    store.known_workers = [worker()]

    found = await examined(store)

    assert {finding.level for many in found.values() for finding in many} == {"ok"}
    assert found["workers"][0].text == "1 alive"


async def test_an_orphaned_run_is_a_problem() -> None:
    store = SickStore()
    store.lost = [f"r{number}" for number in range(9)]

    (finding,) = (await examined(store))["orphans"]

    assert finding.level == "problem"
    assert "nothing will ever continue r0, r1, r2, r3, r4 and more" in finding.text


async def test_a_silent_worker_is_named() -> None:
    store = SickStore()
    store.known_workers = [worker(silent=5 * MINUTE)]

    dead, alive = (await examined(store))["workers"]

    assert (dead.level, alive.text) == ("warning", "0 alive")
    assert "worker wally (pid 7 on h) sent its last heartbeat 5 min ago" in dead.text


async def test_the_findings_of_the_store_about_its_workers_win() -> None:
    store = SickStore()
    store.known_workers = [worker(silent=5 * MINUTE)]
    store.own = [Finding(level="warning", subject="workers", text="the store knows")]

    assert [finding.text for finding in (await examined(store))["workers"]] == ["the store knows"]


async def test_different_clocks_are_a_warning() -> None:
    store = SickStore()
    store.ahead = 10 * SECOND

    (finding,) = (await examined(store))["clock"]

    assert finding.level == "warning"
    assert "differ by 10 s" in finding.text


async def test_a_type_without_a_worker_is_a_warning_until_its_runs_end() -> None:
    store = SickStore()
    details = await run(store)

    (before,) = (await examined(store))["types"]
    async with Holdfast("memory://", store=store) as hf:
        await hf.run(details.run.id).cancel()
    (after,) = (await examined(store))["types"]

    assert "no worker handles a.b.v1: 1 run has not ended, 1 is due, the oldest for " in before.text
    assert after.level == "ok"


async def test_unhandled_runs_that_are_not_due_are_counted_separately() -> None:
    store = SickStore()
    async with Holdfast("memory://", store=store) as hf:
        await hf.start("a.b.v1", {})
        await hf.start("a.b.v1", {}, delay=60)
        await hf.start("c.v1", {}, delay=60)
        store.ahead = 30 * SECOND

    due, later = (await examined(store))["types"]

    assert "a.b.v1: 2 runs have not ended, 1 is due, the oldest for 30 s" in due.text
    assert later.text == "no worker handles c.v1: 1 run has not ended; start a worker"


async def test_a_run_that_has_been_ready_for_long_is_a_warning() -> None:
    store = SickStore()
    store.known_workers = [worker()]
    details = await run(store)
    late = replace(details, run=replace(details.run, ready_at=SystemClock().now() - 5 * MINUTE))

    store.known_runs = [details]
    (fresh,) = (await examined(store))["ready"]
    store.known_runs = [details, late]
    (old,) = (await examined(store))["ready"]

    assert (fresh.level, old.level) == ("ok", "warning")
    assert f"2 runs ready; the oldest, {late.run.id}, for 5 min; start more workers" in old.text


async def test_blocked_runs_are_named() -> None:
    store = SickStore()
    details = await run(store)
    error = ErrorRecord(type="HistoryDiverged", message="x")
    store.known_runs = [replace(details, run=replace(details.run, state=RunState.BLOCKED, error=error))]

    (finding,) = (await examined(store))["blocked"]

    assert finding.level == "warning"
    assert f"1 run cannot continue: {details.run.id}" in finding.text
