"""Random concurrent programs: a seed generates a tree of operations, which one workflow executes.

A program is plain JSON, so it is the payload of its run. Its result depends on the tree alone, never on the duration of
steps or the death of a worker: only timers race with timers, and each message has its own name. How its branches
interleave does depend on that; `mark` records it in a step and checks, on every replay, that it was repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import ChildFailed, Context, Registry, Retry, StepFailed, WaitTimeout, step_info
from tests.programs.ledger import EffectLedger

Node = list[Any]
"""The name of an operation and its arguments."""

LEAVES = ("step", "step", "sleep", "doze", "receive", "flaky", "broken", "never", "mark", "silence", "note")
BRANCHES = ("all", "group", "first", "each", "limit", "guard", "child", "stray", "queue", "lock", "choose", "stream")


class Gardener:
    """Generates programs from a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._count = 0

    def grow(self, depth: int) -> Node:
        """Return a sequence of operations, some of which contain others."""
        return ["sequence", [self._node(depth) for _ in range(self._chance.randint(1, 4))]]

    def _node(self, depth: int) -> Node:
        self._count += 1
        kind = self._chance.choice(LEAVES if depth == 0 or self._chance.random() < 0.45 else BRANCHES)
        number = self._count
        match kind:
            case "sleep":
                return [kind, self._chance.choice([0, 5, 60, 3600])]
            case "doze":
                return [kind, self._chance.choice([0, 0.2, 5, 60])]
            case "receive":
                return [kind, f"m{number}"]
            case "first" | "each":
                # Only timers, no two of which end together: their order never varies.
                return [kind, self._chance.sample([1, 2, 3, 5, 8, 13, 100], self._chance.randint(1, 4))]
            case "all" | "group" | "queue" | "lock" | "stream":
                return [kind, [self.grow(depth - 1) for _ in range(self._chance.randint(1, 3))]]
            case "limit":
                return [kind, self._chance.randint(1, 50), [self.grow(0) for _ in range(2)]]
            case "guard" | "child" | "stray" | "choose":
                return [kind, self.grow(depth - 1), self.grow(depth - 1)]
            case _:
                return [kind, number]


def messages_of(node: Any) -> list[str]:
    """Return the names of all messages a program itself waits for; its children get theirs from it."""
    if not isinstance(node, list):
        return []
    if node and node[0] == "receive":
        return [node[1]]
    if node and node[0] == "child":
        return messages_of(node[2])
    return [name for part in node for name in messages_of(part)]


class Player:
    """Executes one program inside one run."""

    def __init__(self, ctx: Context, ledger: EffectLedger) -> None:
        self.ctx = ctx
        self.ledger = ledger
        self.trace: list[str] = []

    async def play(self, node: Node) -> Any:
        """Execute an operation. Its result never depends on timing."""
        kind, *parts = node
        play: Callable[..., Awaitable[Any]] = getattr(self, f"_{kind}")
        result = await play(*parts)
        self.trace.append(f"{kind}={result!r}")
        return result

    async def _sequence(self, nodes: list[Node]) -> Any:
        return [await self.play(node) for node in nodes]

    # Leaves

    async def _step(self, number: int) -> Any:
        return await self.ctx.step("step", self.ledger.note, number)

    async def _note(self, number: int) -> Any:
        self.ctx.set_value("last", number)
        self.ctx.emit("noted", number)
        return await self.ctx.step("note", self.ledger.note, [number], ephemeral=number % 2 == 0)

    async def _flaky(self, number: int) -> Any:
        def body() -> int:
            self.ledger.note()
            if step_info().attempt <= number % 3:
                raise OSError("busy")
            return number

        retry = Retry(max_attempts=9, initial=number % 2 * 20.0, jitter=0)
        return await self.ctx.step("flaky", body, retry=retry)

    async def _broken(self, number: int) -> Any:
        def body() -> None:
            self.ledger.note()
            raise LookupError(str(number))

        try:
            await self.ctx.step("broken", body, retry=Retry(retry_on=OSError))
        except StepFailed as failure:
            return failure.message
        raise AssertionError("a broken step returned")

    async def _sleep(self, seconds: float) -> str:
        await self.ctx.sleep(seconds)
        return "slept"

    async def _doze(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "dozed"

    async def _receive(self, name: str) -> Any:
        return await self.ctx.receive(name)

    async def _never(self, number: int) -> str:
        try:
            await self.ctx.receive("never", timeout=number % 4)
        except WaitTimeout:
            return "no message"
        raise AssertionError("a message that nobody sent")

    async def _silence(self, number: int) -> str:
        try:
            await self.ctx.wait_event("silence", timeout=number % 4)
        except WaitTimeout:
            return "no event"
        raise AssertionError("an event that nobody emitted")

    async def _mark(self, number: int) -> int:
        world = [self.ctx.random.random(), str(self.ctx.uuid()), self.ctx.now().isoformat()]
        seen: list[Any] = [*self.trace, *world]
        recorded = await self.ctx.step("mark", lambda: seen)
        assert recorded == seen, f"a replay went another way: {recorded} was {seen}"
        return number

    # Branches

    async def _all(self, nodes: list[Node]) -> Any:
        return list(await asyncio.gather(*(self.play(node) for node in nodes)))

    async def _group(self, nodes: list[Node]) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.play(node)) for node in nodes]
        return [task.result() for task in tasks]

    async def _check(self, seen: str) -> None:
        """Record what the code sees now. Every replay must see the same."""
        recorded = await self.ctx.step("check", self.ledger.note, seen)
        assert recorded == seen, f"a replay went another way: {recorded} was {seen}"

    async def _first(self, seconds: list[int]) -> Any:
        tasks = {asyncio.create_task(self.ctx.sleep(each), name=str(each)) for each in seconds}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:  # in the order of the set
            self.trace.append(f"dropped {task.get_name()}")
            task.cancel()
        await self._check(" ".join(task.get_name() for task in pending))
        return [task.get_name() for task in done]

    async def _each(self, seconds: list[int]) -> Any:
        pending = {asyncio.create_task(asyncio.sleep(each), name=str(each)) for each in seconds}
        order: list[str] = []
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            order += sorted((task.get_name() for task in done), key=int)
            self.trace.append(" ".join(task.get_name() for task in done))
            await self._check(" ".join(task.get_name() for task in pending))
        return order

    async def _limit(self, seconds: int, nodes: list[Node]) -> Any:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(self.ctx.receive("never"), *(self._quietly(node) for node in nodes))
        except TimeoutError:
            return "timed out"
        raise AssertionError("a message that nobody sent")

    async def _quietly(self, node: Node) -> None:
        """Execute operations under a timeout. They may be cut off at any point, so the result shows none of them."""
        player = Player(self.ctx, self.ledger)
        await player.play(["sequence", [part for part in node[1] if part[0] not in ("receive", "note")]])

    async def _guard(self, node: Node, after: Node) -> Any:
        try:
            return await self.play(node)
        finally:
            await self.play(after)

    async def _child(self, node: Node, beside: Node) -> Any:
        child = await self.ctx.start("program", {"node": node, "fails": len(beside[1]) == 1})
        for name in messages_of(node):
            child.send(name, name)
        found = await self.play(beside)
        try:
            return [found, await child]
        except ChildFailed as failure:
            return [found, failure.message]

    async def _stray(self, node: Node, beside: Node) -> Any:
        task = asyncio.create_task(self.ctx.sleep(7))
        found = await self.play(beside)
        await asyncio.wait([task])
        return [found, await self.play(node)]

    async def _queue(self, nodes: list[Node]) -> Any:
        queue: asyncio.Queue[Any] = asyncio.Queue(1)

        async def produce() -> None:
            for node in nodes:
                await queue.put(await self.play(node))

        async def consume() -> list[Any]:
            return [await queue.get() for _ in nodes]

        _, got = await asyncio.gather(produce(), consume())
        return got

    async def _lock(self, nodes: list[Node]) -> Any:
        lock, narrow = asyncio.Lock(), asyncio.Semaphore(2)

        async def one(node: Node) -> Any:
            async with narrow, lock:
                return await self.play(node)

        return list(await asyncio.gather(*(one(node) for node in nodes)))

    async def _choose(self, node: Node, other: Node) -> Any:
        drawn = await self.ctx.step("draw", self.ledger.note, len(other[1]) % 2)
        return await self.play(node if drawn else other)

    async def _stream(self, nodes: list[Node]) -> Any:
        async def stream() -> Any:
            for node in nodes:
                yield await self.play(node)

        return [one async for one in stream()]


def build(app: Registry, ledger: EffectLedger, *, strict: bool = True) -> None:
    """Register the one workflow that executes programs."""

    @app.workflow("program", strict=strict)
    async def program(ctx: Context, node: Node, fails: bool = False, waits: bool = False) -> Any:  # noqa: FBT002
        player = Player(ctx, ledger)
        result = await player.play(node)
        if waits:
            ctx.set_value("trace", player.trace)
            await ctx.receive("end")
            result = player.trace
        if fails:
            raise ValueError(repr(result)[:100])
        return result
