"""Restate, with its own server, which comes from npm."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from benchmarks.peers.driver import (
    Driver,
    Figures,
    Request,
    Workload,
    idle,
    importing,
    lateness,
    per_step_async,
    seconds_async,
    timed_async,
)

STEPS = 5
AT_ONCE = 200

SETUP = f"""
    One process with the handlers, served over HTTP/2 by Hypercorn, beside `restate-server` on the same machine with its
    default settings (it syncs its log to disk). Calls go through the ingress with HTTPX, as its own client does. Many
    runs at once are called by a handler, {AT_ONCE} at a time, because through the ingress the HTTP client was the
    limit. A message resolves a durable promise. Bulk is a handler that sends. CPU and memory are those of both
    processes. Long histories, resuming and growth were not measured.
"""

service = restate.Service("bench")
waiter = restate.Workflow("waiter")


def clock() -> float:
    return time.time()


def count_up_body(number: int) -> int:
    return number + 1


def count_up(ctx: restate.Context, number: int) -> Any:
    return ctx.run_typed("count_up", count_up_body, number=number)


@service.handler()
async def five_steps(ctx: restate.Context, number: int) -> int:
    for _ in range(STEPS):
        number = await count_up(ctx, number)
    return number


@service.handler()
async def many_steps(ctx: restate.Context, count: int) -> int:
    for number in range(count):
        await count_up(ctx, number)
    return count


@service.handler()
async def one_step(ctx: restate.Context, number: int) -> int:
    found: int = await count_up(ctx, number)
    return found


@service.handler()
async def double(ctx: restate.Context, number: int) -> int:
    return number * 2


@service.handler()
async def many_five_steps(ctx: restate.Context, runs: int) -> int:
    return await _in_slices(range(runs), lambda number: ctx.service_call(five_steps, number))


@service.handler()
async def many_doubles(ctx: restate.Context, count: int) -> int:
    return await _in_slices(range(count), lambda number: ctx.service_call(double, number))


@service.handler()
async def send_doubles(ctx: restate.Context, count: int) -> int:
    for number in range(count):
        ctx.service_send(double, number, send_delay=timedelta(hours=1))
    return count


async def _in_slices(numbers: range, call: Callable[[int], Any]) -> int:
    total = 0
    for begin in range(0, len(numbers), AT_ONCE):
        calls = [call(number) for number in numbers[begin : begin + AT_ONCE]]
        await restate.gather(*calls)
        total += sum([await one for one in calls])
    return total


@service.handler()
async def many_children(ctx: restate.Context, width: int) -> int:
    calls = [ctx.service_call(one_step, number) for number in range(width)]
    await restate.gather(*calls)
    return sum([await call for call in calls])


@service.handler()
async def many_at_once(ctx: restate.Context, width: int) -> int:
    steps = [count_up(ctx, number) for number in range(width)]
    await restate.gather(*steps)
    return sum([await step for step in steps])


@service.handler()
async def sleeper(ctx: restate.Context, milliseconds: int) -> float:
    asleep_at = await ctx.run_typed("before", clock)
    await ctx.sleep(timedelta(milliseconds=milliseconds))
    late: float = await ctx.run_typed("after", clock) - asleep_at - milliseconds / 1000
    return late


@waiter.main()
async def wait_for_message(ctx: restate.WorkflowContext, number: int) -> str:
    found: str = await ctx.promise("go", type_hint=str).value()
    return found


@waiter.handler()
async def go_on(ctx: restate.WorkflowSharedContext, text: str) -> None:
    await ctx.promise("go", type_hint=str).resolve(text)


class Client:
    """A client of the ingress; it knows the process of the server."""

    def __init__(self, http: httpx.AsyncClient, server: int) -> None:
        self.http = http
        self.server = server

    async def call(self, path: str, argument: object) -> Any:
        found = await self.http.post(path, json=argument)
        found.raise_for_status()
        return found.json() if found.content else None

    async def call_all(self, path: str, arguments: range) -> list[Any]:
        return await asyncio.gather(*(self.call(path, argument) for argument in arguments))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Client]:
    """The server, the handlers and a client."""
    ingress, admin, node, own = _free_ports(4)
    server = await asyncio.to_thread(_start_server, folder, ingress, admin, node)
    config = Config()
    config.bind = [f"127.0.0.1:{own}"]
    config.h2_max_concurrent_streams = 2**31 - 1
    config.keep_alive_max_requests = 2**31 - 1
    handlers = asyncio.create_task(serve(restate.app([service, waiter]), config, shutdown_trigger=asyncio.Event().wait))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ingress}", timeout=300) as http:
        await _until_healthy(http, f"http://127.0.0.1:{admin}/health")
        await _until_healthy(http, "/restate/health")
        uri = {"uri": f"http://127.0.0.1:{own}"}
        (await http.post(f"http://127.0.0.1:{admin}/deployments", json=uri)).raise_for_status()
        client = Client(http, server.pid)
        await client.call("/bench/one_step", 1)
        yield client
    handlers.cancel()
    server.kill()


def _start_server(folder: Path, ingress: int, admin: int, node: int) -> subprocess.Popen[bytes]:
    system = {"Linux": "linux", "Darwin": "darwin"}[platform.system()]
    machine = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}[platform.machine()]
    modules = Path(sys.prefix).parent / "node_modules"
    binary = modules / "@restatedev" / f"restate-server-{system}-{machine}" / "bin" / "restate-server"
    settings = {
        "RESTATE_BASE_DIR": str(folder),
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_LOG_FILTER": "error",
        "RESTATE_DISABLE_TELEMETRY": "true",
    }
    return subprocess.Popen([str(binary), "--no-logo"], env={**os.environ, **settings}, stdout=subprocess.DEVNULL)


async def _until_healthy(http: httpx.AsyncClient, url: str) -> None:
    while True:
        try:
            if (await http.get(url)).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def throughput(client: Client, request: Request) -> Figures:
    started = time.perf_counter()
    total = await client.call("/bench/many_five_steps", request["runs"])
    took = time.perf_counter() - started
    assert total == sum(number + STEPS for number in range(request["runs"]))
    return {"per_second": request["runs"] * STEPS / took}


async def tasks(client: Client, request: Request) -> Figures:
    took = await seconds_async(client.call("/bench/many_doubles", request["count"]))
    return {"per_second": request["count"] / took}


async def step(client: Client, request: Request) -> Figures:
    return await per_step_async(lambda: client.call("/bench/many_steps", request["steps"]), request["steps"])


async def start(client: Client, request: Request) -> Figures:
    return await timed_async(lambda: client.call("/bench/one_step", 1), request["runs"])


async def message(client: Client, request: Request) -> Figures:
    waiting = [
        (number, asyncio.create_task(client.call(f"/waiter/{number}/wait_for_message", number)))
        for number in range(request["runs"] + 1)
    ]
    await asyncio.sleep(1)  # wait until all of them wait

    async def go() -> None:
        number, result = waiting.pop()
        await client.call(f"/waiter/{number}/go_on", "on")
        assert await result == "on"

    return await timed_async(go, request["runs"])


async def children(client: Client, request: Request) -> Figures:
    return {"seconds": await seconds_async(client.call("/bench/many_children", request["width"]))}


async def parallel(client: Client, request: Request) -> Figures:
    return {"seconds": await seconds_async(client.call("/bench/many_at_once", request["width"]))}


async def timers(client: Client, request: Request) -> Figures:
    return lateness(await client.call_all("/bench/sleeper", range(1000, 1000 + 20 * request["runs"], 20)))


async def enqueue(client: Client, request: Request) -> Figures:
    """Delayed by an hour, so that they are not executed meanwhile."""
    one = await timed_async(lambda: client.call("/bench/double/send?delay=1h", 1), request["count"])
    took = await seconds_async(client.call("/bench/send_doubles", request["bulk"]))
    return {"single": 1 / one["seconds"], "bulk": request["bulk"] / took}


async def at_rest(client: Client, request: Request) -> Figures:
    return await asyncio.to_thread(idle, request["seconds"], client.server)


def served(measure: Callable[[Client, Request], Awaitable[Figures]]) -> Workload:
    async def go(request: Request) -> Figures:
        async with running(Path(request.url.removeprefix("file://"))) as client:
            return await measure(client, request)

    return lambda request: asyncio.run(go(request))


WORKLOADS: dict[str, Workload] = {
    "throughput": served(throughput),
    "tasks": served(tasks),
    "step": served(step),
    "start": served(start),
    "message": served(message),
    "children": served(children),
    "parallel": served(parallel),
    "timers": served(timers),
    "enqueue": served(enqueue),
    "idle": served(at_rest),
    "import": importing("import restate"),
}

if __name__ == "__main__":
    Driver(("restate-sdk", "hypercorn", "httpx"), SETUP, WORKLOADS).main()
