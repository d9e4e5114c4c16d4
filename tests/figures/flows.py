"""Flows: the longest hold of the event loop by hostile programs in CPU time, and waking after many awaits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.flows import wake_seconds
from holdfast import Holdfast, Registry, RunFailed
from tests.figures.series import MILLISECOND, report

LIMIT_SECONDS = 50 * MILLISECOND
NEIGHBOURS = 20
PATIENCE_SECONDS = 60
AWAITS = [10, 1_000, 100_000]

HOSTILE = {
    "endless loop": "while True:\n    pass",
    "huge texts": "while True:\n    s = 'a' * 900000\n    t = s + 'b'\n    u = t.upper()",
    "huge wide texts": "while True:\n    s = '\U0001f600' * 900000\n    t = s + 'b'\n    u = t.upper()",
    "states of wide texts": """
x = ['\U0001f600' * 120000, '\\x01' * 80000]
while True:
    await receive_batch('m', 9, timeout=0)
""",
    "text of large lists": "x = list(range(29000))\nwhile True:\n    s = str(x)",
    "sorting": "x = [str(i) for i in range(29000)]\nwhile True:\n    y = sorted(x)",
    "large state": "x = [list(range(1000)) for i in range(100)]\nwhile True:\n    x[0] = list(range(1000))",
    "a million handles": "x = []\nwhile True:\n    x.append(sleep(1000))",
    "many sends": "for i in range(5000):\n    send(target, 'm', 1)",
    "large sends": "s = 'a' * 900000\nwhile True:\n    send(target, 'm', s)",
    "endless starts": "for i in range(5000):\n    start('nothing.v1', n=i)",
    "deep recursion": "x = 0\nwhile x < 1000:\n    x += deep(90)",
    "many facts": "while True:\n    await receive_batch('m', 1000, timeout=0)",
    "many emits": "for i in range(5000):\n    emit('t', i)",
    "large map": "await map('polite.v1', [{'n': i} for i in range(5000)])",
    "large map that is cancelled": "h = map('polite.v1', [{'n': i} for i in range(5000)])\nawait sleep(0)\ncancel(h)",
    "end with many children": "h = map('nothing.v1', [{}] * 5000)\nawait sleep(0)",
    "failure with many children": "h = map('nothing.v1', [{}] * 5000)\nawait sleep(0)\nraise Error('x', 'y')",
    "many values": "for i in range(5000):\n    set_value(f'v{i}', i)",
    "large logs": "s = 'a' * 900000\nfor i in range(99):\n    log(s)",
    "large snapshots": "x = ['a' * 1000 for i in range(900)]\nwhile True:\n    await receive_batch('m', 9, timeout=0)",
    "many parts": "x = [[[i]] for i in range(4500)]\nwhile True:\n    await receive_batch('m', 9, timeout=0)",
    "many paths": "while True:\n    await join([path(i) for i in range(900)])",
    "comparing": "x = [[i] for i in range(4900)]\ny = [[i] for i in range(4900)]\nwhile True:\n    z = x == y",
    "f-strings of lists": "x = [[i] for i in range(9000)]\nwhile True:\n    z = f'{x}'",
    "join of many handles": "await join([sleep(5 + i) for i in range(1900)])",
    "joins of the same handles": "x = [sleep(5) for i in range(1900)]\nwhile True:\n    h = join(x)",
    "race of failures": """
x = [receive("q", timeout=0) for i in range(1900)]
await sleep(0.01)
while True:
    try:
        await race(x)
    except RaceFailed:
        pass
""",
    "many waits": "x = [receive('q') for i in range(2990)]\nwhile True:\n    await receive_batch('m', 9, timeout=0)",
    "long messages of errors": """
k = "a" * 900000
while True:
    try:
        {}[k]
    except KeyError:
        pass
""",
}
KIND = """
async def main():
    n = 0
    for i in range(5):
        n += await call("polite.v1", n=i)
    return n
"""
WITH_CHILDREN = ("end with many children", "failure with many children", "large map that is cancelled")
"""Programs whose end, too, is measured: it cancels thousands of children."""

HELPERS = """
def deep(n):
    return 1 if n < 2 else deep(n - 1)

async def path(n):
    await sleep(n / 1000)
    await sleep(1)

"""


@contextmanager
def longest_callback() -> Iterator[list[float]]:
    """Note the CPU time of the longest callback of the event loop, in seconds."""
    longest = [0.0]
    original = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        original(handle)
        longest[0] = max(longest[0], time.thread_time() - before)

    asyncio.Handle._run = timed  # type: ignore[method-assign,assignment]
    try:
        yield longest
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]


@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_flow_leaves_the_loop_to_others(
    name: str, store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/runs.db",
        "redis": lambda: str(request.getfixturevalue("redis_url")),
    }
    app = Registry()

    @app.task("polite.v1")
    async def polite(n: int) -> int:
        return n

    hf = Holdfast(urls[store]())
    hf.include(app)
    body = "\n".join(f"    {line}" for line in HOSTILE[name].strip().split("\n"))
    async with hf:
        await hf.flows.register(f"{HELPERS}async def main(target):\n{body}\n", type="hostile.v1")
        await hf.flows.register(KIND, type="kind.v1")
        await hf.flows.register("async def main():\n    await receive('never')\n", type="target.v1")
        async with hf.worker():
            target = await hf.start("target.v1")
            hostile = await hf.start("hostile.v1", {"target": target.id})
            with longest_callback() as longest:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    for _ in range(NEIGHBOURS):
                        assert await (await hf.start("kind.v1")).result() == 10
                    if name in WITH_CHILDREN:
                        with suppress(RunFailed):
                            await hostile.result()
            await hostile.cancel()
    report(f"{name}, {store}: CPU of one callback", longest, unit="ms")
    assert longest[0] <= LIMIT_SECONDS


async def test_waking_a_flow_costs_the_same_after_many_awaits() -> None:
    times, most = await wake_seconds(AWAITS)
    for count, seconds in times.items():
        report(f"waking a flow after {count:,} awaits", [seconds], unit="ms")

    assert most <= 2  # the snapshot and the event cursors: a claim never loads the past
    assert times[AWAITS[-1]] <= 1.2 * times[AWAITS[0]]
