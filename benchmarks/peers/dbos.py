"""DBOS Transact, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig, SetWorkflowID

from benchmarks.peers.driver import (
    Driver,
    Figures,
    Request,
    Workload,
    idle,
    importing,
    lateness,
    per_step,
    seconds,
    timed,
)
from benchmarks.peers.filling import fill

STEPS = 5
POLL_SECONDS = 0.005
POOL = 20

SETUP = f"""
    One process with `DBOS.launch()`. Workflows are started directly with `DBOS.start_workflow`, without a queue,
    because a queue would poll. Sync functions run in threads (async ones were slower here; only the 200 parallel steps
    are async). `sys_db_pool_size` is {POOL}, `notification_listener_polling_interval_sec` is {POLL_SECONDS} (its
    default of 1 s would make messages on SQLite slow), and only errors are logged. On SQLite the file is put into WAL
    mode beforehand; on Postgres LISTEN/NOTIFY is on. Bulk is `DBOSClient.enqueue_in_transaction`, many in one
    transaction.
"""


@DBOS.step()
def count_up(number: int) -> int:
    return number + 1


@DBOS.step()
async def count_up_async(number: int) -> int:
    return number + 1


@DBOS.workflow()
def five_steps(number: int) -> int:
    for _ in range(STEPS):
        number = count_up(number)
    return number


@DBOS.workflow()
def many_steps(count: int) -> int:
    for number in range(count):
        count_up(number)
    return count


@DBOS.workflow()
def one_step(number: int) -> int:
    found: int = count_up(number)
    return found


@DBOS.workflow()
def double(number: int) -> int:
    """A task: a workflow without steps, the cheapest durable function in DBOS."""
    return number * 2


@DBOS.workflow()
def wait_for_message() -> object:
    return DBOS.recv("go", timeout_seconds=600)


@DBOS.workflow()
def many_children(width: int) -> int:
    handles = [DBOS.start_workflow(one_step, number) for number in range(width)]
    return sum(handle.get_result() for handle in handles)


@DBOS.workflow()
async def many_at_once(width: int) -> int:
    return sum(await asyncio.gather(*(count_up_async(number) for number in range(width))))


@DBOS.step()
def clock() -> float:
    return time.time()


@DBOS.workflow()
def sleeper(milliseconds: int) -> float:
    asleep_at = clock()
    DBOS.sleep(milliseconds / 1000)
    late: float = clock() - asleep_at - milliseconds / 1000
    return late


@DBOS.workflow()
def long_history(steps: int) -> object:
    for number in range(steps):
        count_up(number)
    DBOS.set_event("waits", "yes")
    return DBOS.recv("go", timeout_seconds=600)


def system_url(url: str) -> str:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute("pragma journal_mode = wal")
    return url.replace("postgresql://", "postgresql+psycopg://")


def launch(request: Request) -> None:
    config: DBOSConfig = {
        "name": "bench",
        "application_version": "1",  # recovery applies to runs of the same version
        "system_database_url": system_url(request.url),
        "log_level": "ERROR",
        "sys_db_pool_size": POOL,
        "notification_listener_polling_interval_sec": POLL_SECONDS,
    }
    DBOS(config=config)
    DBOS.launch()


def launched(measure: Callable[[Request], Figures]) -> Workload:
    """A workload in a warmed-up process."""

    def go(request: Request) -> Figures:
        launch(request)
        one_step(0)
        return measure(request)

    return go


def throughput(request: Request) -> Figures:
    started = time.perf_counter()
    handles = [DBOS.start_workflow(five_steps, number) for number in range(request["runs"])]
    results = [handle.get_result() for handle in handles]
    took = time.perf_counter() - started
    assert results == [number + STEPS for number in range(request["runs"])]
    return {"per_second": request["runs"] * STEPS / took}


def tasks(request: Request) -> Figures:
    started = time.perf_counter()
    for handle in [DBOS.start_workflow(double, number) for number in range(request["count"])]:
        handle.get_result()
    return {"per_second": request["count"] / (time.perf_counter() - started)}


def step(request: Request) -> Figures:
    return per_step(lambda: many_steps(request["steps"]), request["steps"])


def start(request: Request) -> Figures:
    return timed(lambda: DBOS.start_workflow(one_step, 1).get_result(), request["runs"])


def message(request: Request) -> Figures:
    handles = [DBOS.start_workflow(wait_for_message) for _ in range(request["runs"] + 1)]
    time.sleep(1)  # wait until all of them wait

    def go() -> None:
        handle = handles.pop()
        DBOS.send(handle.get_workflow_id(), "on", "go")
        assert handle.get_result() == "on"

    return timed(go, request["runs"])


def children(request: Request) -> Figures:
    return {"seconds": seconds(lambda: many_children(request["width"]))}


def parallel(request: Request) -> Figures:
    async def go() -> float:
        started = time.perf_counter()
        await many_at_once(request["width"])
        return time.perf_counter() - started

    return {"seconds": asyncio.run(go())}


def timers(request: Request) -> Figures:
    handles = [DBOS.start_workflow(sleeper, 1000 + 20 * number) for number in range(request["runs"])]
    return lateness([handle.get_result() for handle in handles])


def enqueue(request: Request) -> Figures:
    url = system_url(request.url)
    client = DBOSClient(system_database_url=url)
    options = {"queue_name": "nobody_listens", "workflow_name": "double"}
    one = timed(lambda: client.enqueue(options, 1), request["count"])
    engine = sqlalchemy.create_engine(url)

    def bulk() -> None:
        with engine.begin() as connection:
            for number in range(request["bulk"]):
                client.enqueue_in_transaction(connection, options, number)

    return {"single": 1 / one["seconds"], "bulk": request["bulk"] / seconds(bulk)}


def history(request: Request) -> Figures:
    started = time.perf_counter()
    with SetWorkflowID("long"):
        DBOS.start_workflow(long_history, request["steps"])
    assert DBOS.get_event("long", "waits", timeout_seconds=600)
    return {"seconds": (time.perf_counter() - started) / request["steps"]}


def resume(request: Request) -> Figures:
    """After a crash: measure from the launch of a new process, which recovers pending runs, to the end of the run."""
    DBOSClient(system_database_url=system_url(request.url)).send("long", "on", "go")
    started = time.perf_counter()
    launch(request)
    handle: DBOS.WorkflowHandle[object] = DBOS.retrieve_workflow("long")
    handle.get_result(polling_interval_sec=POLL_SECONDS)
    return {"resume": time.perf_counter() - started}


def growth(request: Request) -> Figures:
    launch(request)
    one_step(0)
    DBOS.destroy()
    prefix = "" if request.url.startswith("sqlite") else "dbos."
    identifiers = ("workflow_uuid",)
    fill(
        request.url,
        {f"{prefix}workflow_status": identifiers, f"{prefix}operation_outputs": identifiers},
        request["rows"],
    )
    launch(request)
    one_step(0)
    return throughput(request) | start(request)


WORKLOADS: dict[str, Workload] = {
    "throughput": launched(throughput),
    "tasks": launched(tasks),
    "step": launched(step),
    "start": launched(start),
    "message": launched(message),
    "children": launched(children),
    "parallel": launched(parallel),
    "timers": launched(timers),
    "enqueue": launched(enqueue),
    "history": launched(history),
    "resume": resume,
    "growth": growth,
    "idle": launched(lambda request: idle(request["seconds"])),
    "import": importing("from dbos import DBOS"),
}

if __name__ == "__main__":
    Driver(("dbos", "sqlalchemy", "psycopg"), SETUP, WORKLOADS).main()
