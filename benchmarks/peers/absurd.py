"""absurd, on Postgres. Its schema comes from the package `absurdctl`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import absurdctl
import psycopg
from absurd_sdk import Absurd, AsyncAbsurd

from benchmarks.peers.driver import Driver, Figures, Request, Workload, idle, importing, lateness, seconds, timed
from benchmarks.peers.filling import fill

STEPS = 5
POLL_SECONDS = 0.005
WORKERS = 8
QUEUE = "bench"
CHILDREN = "children"

SETUP = f"""
    One process. A worker of absurd has one connection. So {WORKERS} workers in threads execute many tasks at once (1
    and 16 were slower), and one worker measures the latency of a single task. `poll_interval` is {POLL_SECONDS} (its
    default is 0.25 s). Results are polled every {POLL_SECONDS} s with `fetch_task_result` (`await_task_result` begins
    at 50 ms). Children are in a queue of their own, as its documentation requires, and awaited with
    `ctx.await_task_result`. Parallel steps are `asyncio.gather` in an `AsyncAbsurd`. Bulk is many `spawn` in one
    transaction.
"""


def register(app: Absurd) -> None:
    register_steps(app)
    register_waits(app)


def register_steps(app: Absurd) -> None:
    @app.register_task("five_steps")
    def five_steps(params: Any, ctx: Any) -> int:
        number: int = params["number"]
        for _ in range(STEPS):
            number = ctx.step("count_up", lambda number=number: number + 1)
        return number

    @app.register_task("many_steps")
    def many_steps(params: Any, ctx: Any) -> float:
        started = time.perf_counter()
        for number in range(params["count"]):
            ctx.step("count_up", lambda number=number: number + 1)
        return time.perf_counter() - started

    @app.register_task("one_step")
    def one_step(params: Any, ctx: Any) -> int:
        return int(ctx.step("count_up", lambda: params["number"] + 1))

    @app.register_task("double")
    def double(params: Any, ctx: Any) -> int:
        return int(params["number"] * 2)


def register_waits(app: Absurd) -> None:
    @app.register_task("wait_for_event")
    def wait_for_event(params: Any, ctx: Any) -> object:
        return ctx.await_event(params["event"])

    @app.register_task("many_children")
    def many_children(params: Any, ctx: Any) -> int:
        client = Absurd(params["url"])
        spawned = ctx.step(
            "spawn",
            lambda: [
                str(client.spawn("child", {"number": number}, queue=CHILDREN)["task_id"])
                for number in range(params["width"])
            ],
        )
        return sum(ctx.await_task_result(child, queue_name=CHILDREN).result for child in spawned)

    @app.register_task("sleeper")
    def sleeper(params: Any, ctx: Any) -> float:
        length: float = params["seconds"]
        asleep_at: float = ctx.step("before", time.time)
        ctx.sleep_for("sleep", length)
        after: float = ctx.step("after", time.time)
        return after - asleep_at - length

    @app.register_task("long_history")
    def long_history(params: Any, ctx: Any) -> object:
        for number in range(params["steps"]):
            ctx.step("count_up", lambda number=number: number + 1)
        return ctx.await_event("go")


def register_children(app: Absurd) -> None:
    @app.register_task("child")
    def child(params: Any, ctx: Any) -> int:
        return int(ctx.step("count_up", lambda: params["number"] + 1))


def register_async(app: AsyncAbsurd) -> None:
    @app.register_task("many_at_once")
    async def many_at_once(params: Any, ctx: Any) -> int:
        async def count_up(number: int) -> int:
            return number + 1

        steps = (ctx.step(f"count_up {number}", lambda n=number: count_up(n)) for number in range(params["width"]))
        return sum(await asyncio.gather(*steps))


def prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    with psycopg.connect(url, autocommit=True) as connection:
        for queue in (QUEUE, CHILDREN):
            Absurd(connection).create_queue(queue)


def work(url: str, count: int, queue: str = QUEUE, tasks: Callable[[Absurd], None] = register) -> None:
    for _ in range(count):
        app = Absurd(url, queue_name=queue)
        tasks(app)
        options = {"poll_interval": POLL_SECONDS}
        threading.Thread(target=app.start_worker, kwargs=options, daemon=True).start()


class Client:
    """A producer with its own connection."""

    def __init__(self, url: str) -> None:
        self.app = Absurd(url, queue_name=QUEUE)
        register(self.app)

    def spawn(self, name: str, **params: Any) -> str:
        return str(self.app.spawn(name, params, queue=QUEUE)["task_id"])

    def result(self, task: str) -> Any:
        while True:
            found = self.app.fetch_task_result(task)
            if found is not None and found.state == "completed":
                return found.result
            assert found is None or found.state not in ("failed", "cancelled"), found
            time.sleep(POLL_SECONDS)

    def execute(self, name: str, **params: Any) -> Any:
        return self.result(self.spawn(name, **params))


def with_workers(count: int, measure: Callable[[Client, Request], Figures]) -> Workload:
    """A workload beside warmed-up workers."""

    def go(request: Request) -> Figures:
        prepare(request.url)
        work(request.url, count)
        client = Client(request.url)
        for _ in range(count):
            client.execute("one_step", number=1)
        return measure(client, request)

    return go


def throughput(client: Client, request: Request) -> Figures:
    started = time.perf_counter()
    spawned = [client.spawn("five_steps", number=number) for number in range(request["runs"])]
    results = [client.result(task) for task in spawned]
    took = time.perf_counter() - started
    assert results == [number + STEPS for number in range(request["runs"])]
    return {"per_second": request["runs"] * STEPS / took}


def tasks(client: Client, request: Request) -> Figures:
    started = time.perf_counter()
    for task in [client.spawn("double", number=number) for number in range(request["count"])]:
        client.result(task)
    return {"per_second": request["count"] / (time.perf_counter() - started)}


def step(client: Client, request: Request) -> Figures:
    """Measure inside the task, so that claiming it does not count; the first one is left out."""
    client.execute("many_steps", count=request["steps"])
    return {"seconds": client.execute("many_steps", count=request["steps"]) / request["steps"]}


def start(client: Client, request: Request) -> Figures:
    return timed(lambda: client.execute("one_step", number=1), request["runs"])


def message(client: Client, request: Request) -> Figures:
    waiting = [
        (client.spawn("wait_for_event", event=f"go {number}"), f"go {number}") for number in range(request["runs"] + 1)
    ]
    time.sleep(2)  # wait until all of them wait

    def go() -> None:
        task, event = waiting.pop()
        client.app.emit_event(event, "on", QUEUE)
        client.result(task)

    return timed(go, request["runs"])


def children(client: Client, request: Request) -> Figures:
    work(request.url, WORKERS, CHILDREN, register_children)
    return {"seconds": seconds(lambda: client.execute("many_children", width=request["width"], url=request.url))}


def parallel(request: Request) -> Figures:
    prepare(request.url)

    async def go() -> None:
        app = AsyncAbsurd(request.url, queue_name=QUEUE)
        register_async(app)
        await app.start_worker(poll_interval=POLL_SECONDS)

    threading.Thread(target=lambda: asyncio.run(go()), daemon=True).start()
    client = Client(request.url)
    client.execute("many_at_once", width=1)
    return {"seconds": seconds(lambda: client.execute("many_at_once", width=request["width"]))}


def timers(client: Client, request: Request) -> Figures:
    spawned = [client.spawn("sleeper", seconds=1 + number / 50) for number in range(request["runs"])]
    return lateness([client.result(task) for task in spawned])


def enqueue(request: Request) -> Figures:
    prepare(request.url)
    client = Client(request.url)
    one = timed(lambda: client.spawn("double", number=1), request["count"])
    with psycopg.connect(request.url, autocommit=True) as connection:
        bound = Absurd(connection, queue_name=QUEUE)
        register(bound)

        def bulk() -> None:
            with connection.transaction():
                for number in range(request["bulk"]):
                    bound.spawn("double", {"number": number}, queue=QUEUE)

        return {"single": 1 / one["seconds"], "bulk": request["bulk"] / seconds(bulk)}


def history(client: Client, request: Request) -> Figures:
    started = time.perf_counter()
    task = client.spawn("long_history", steps=request["steps"])
    while True:
        found = client.app.fetch_task_result(task)
        if found is not None and found.state == "sleeping":
            return {"seconds": (time.perf_counter() - started) / request["steps"]}
        time.sleep(POLL_SECONDS)


def resume(request: Request) -> Figures:
    """Measure from the start of a worker in a fresh process to the end of the task."""
    client = Client(request.url)
    with psycopg.connect(request.url) as connection:
        found = connection.execute("select task_id from absurd.t_bench where task_name = 'long_history'").fetchone()
        assert found is not None
    client.app.emit_event("go", "on", QUEUE)
    started = time.perf_counter()
    work(request.url, 1)
    client.result(str(found[0]))
    return {"resume": time.perf_counter() - started}


def growth(request: Request) -> Figures:
    prepare(request.url)
    stop = Absurd(request.url, queue_name=QUEUE)
    register(stop)
    client = Client(request.url)
    client.spawn("one_step", number=1)
    stop.work_batch()
    stop.close()
    tables = {f"absurd.t_{QUEUE}": ("task_id", "last_attempt_run"), f"absurd.r_{QUEUE}": ("run_id", "task_id")}
    fill(request.url, {**tables, f"absurd.c_{QUEUE}": ("task_id", "owner_run_id")}, request["rows"])
    work(request.url, WORKERS)
    client.execute("one_step", number=1)
    return throughput(client, request) | start(client, request)


WORKLOADS: dict[str, Workload] = {
    "throughput": with_workers(WORKERS, throughput),
    "tasks": with_workers(WORKERS, tasks),
    "step": with_workers(1, step),
    "start": with_workers(1, start),
    "message": with_workers(1, message),
    "children": with_workers(1, children),
    "parallel": parallel,
    "timers": with_workers(WORKERS, timers),
    "enqueue": enqueue,
    "history": with_workers(1, history),
    "resume": resume,
    "growth": growth,
    "idle": with_workers(1, lambda _, request: idle(request["seconds"])),
    "import": importing("from absurd_sdk import Absurd"),
}

if __name__ == "__main__":
    Driver(("absurd-sdk", "absurdctl", "psycopg"), SETUP, WORKLOADS).main()
