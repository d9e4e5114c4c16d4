"""Flows of strangers: how long a hostile program holds the event loop of its worker at once, in CPU time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast import Holdfast, Registry
from tests.figures.series import MILLISECOND, tell

LIMIT_SECONDS = 50 * MILLISECOND
NEIGHBOURS = 20
PATIENCE_SECONDS = 60

HOSTILE = {
    "endless loop": "while True:\n    pass",
    "huge texts": "while True:\n    s = 'a' * 900000\n    t = s + 'b'\n    u = t.upper()",
    "text of large lists": "x = list(range(29000))\nwhile True:\n    s = str(x)",
    "sorting": "x = [str(i) for i in range(29000)]\nwhile True:\n    y = sorted(x)",
    "large state": "x = [list(range(1000)) for i in range(100)]\nwhile True:\n    x[0] = list(range(1000))",
    "a million handles": "x = []\nwhile True:\n    x.append(sleep(1000))",
    "many sends": "for i in range(5000):\n    send(target, 'm', 1)",
    "large sends": "s = 'a' * 900000\nwhile True:\n    send(target, 'm', s)",
    "endless starts": "for i in range(5000):\n    start('nothing.v1', n=i)",
    "deep recursion": "x = 0\nwhile x < 1000:\n    x += deep(90)",
    "many facts": "while True:\n    await receive('m', timeout=0)",
}
KIND = """
async def main():
    n = 0
    for i in range(5):
        n += await call("polite.v1", n=i)
    return n
"""
HELPER = "def deep(n):\n    return 1 if n < 2 else deep(n - 1)\n\n"


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


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_flow_leaves_the_loop_to_others(name: str) -> None:
    app = Registry()

    @app.task("polite.v1")
    async def polite(n: int) -> int:
        return n

    hf = Holdfast("memory://")
    hf.include(app)
    body = "\n".join(f"    {line}" for line in HOSTILE[name].split("\n"))
    async with hf:
        await hf.flows.register(f"{HELPER}async def main(target):\n{body}\n", type="hostile.v1")
        await hf.flows.register(KIND, type="kind.v1")
        await hf.flows.register("async def main():\n    await receive('never')\n", type="target.v1")
        async with hf.worker():
            target = await hf.start("target.v1")
            hostile = await hf.start("hostile.v1", {"target": target.id})
            with longest_callback() as longest:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    for _ in range(NEIGHBOURS):
                        assert await (await hf.start("kind.v1")).result() == 10
            await hostile.cancel()
    tell(f"{name}: CPU of one callback", longest, unit="ms")
    assert longest[0] <= LIMIT_SECONDS
