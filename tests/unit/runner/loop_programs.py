"""Random programs of plain asyncio, recorded with steps that end in random order, and replayed from their facts.

As a script it replays the recordings on standard input, in a process with another hash seed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.unit.runner.loop_rig import Rig, StepError

FACT_LIMIT = 40
LOST_AT_MOST = 3


class Diverged(Exception):
    """A replay did not request what was recorded, or was in another state at the same fact."""


@dataclass
class Recording:
    """The facts of a run, and its visible state before and after each of them."""

    seed: int
    facts: list[tuple[str, str, int, float]] = field(default_factory=list)  # kind, location, value, time
    digests: list[str] = field(default_factory=list)
    evictions: int = 0


def record(seed: int) -> Recording:
    """Execute a program to its end. At random it is evicted, loses its latest facts and is replayed."""
    recording, chance = Recording(seed), Random(seed)
    rig = _begin(recording)
    while not rig.root.done() and (rig.pending or rig.timers) and len(recording.facts) < FACT_LIMIT:
        if chance.random() < 0.1:
            recording.evictions += 1
            rig.loop.evict()
            kept = max(0, len(recording.facts) - chance.randint(0, LOST_AT_MOST))
            recording.facts, recording.digests = recording.facts[:kept], recording.digests[: kept + 1]
            rig = _replayed(recording)
            continue
        fact = _random_fact(rig, chance)
        recording.facts.append(fact)
        _feed(rig, fact)
        recording.digests.append(_digest(rig))
    rig.loop.evict()
    return recording


def replay(recording: Recording) -> None:
    """Replay the whole recording. Raises `Diverged` at the first fact after which anything differs."""
    _replayed(recording).loop.evict()


def _replayed(recording: Recording) -> Rig:
    rig = _rig(recording.seed).start()
    try:
        _compare(rig, recording.digests[0])
        for fact, digest in zip(recording.facts, recording.digests[1:], strict=True):
            _feed(rig, fact)
            _compare(rig, digest)
    except Diverged:
        rig.loop.evict()
        raise
    return rig


def _compare(rig: Rig, digest: str) -> None:
    if _digest(rig) != digest:
        raise Diverged(f"{rig.loop.run_id} is in another state than when it was recorded: {rig.trace[-3:]}")


def _begin(recording: Recording) -> Rig:
    rig = _rig(recording.seed).start()
    recording.digests.append(_digest(rig))
    return rig


def _rig(seed: int) -> Rig:
    program = _program(Random(seed), depth=3)
    rig = Rig(lambda rig: _root(rig, program), run_id=f"run-{seed}")
    Rig.made.pop()
    return rig


def _random_fact(rig: Rig, chance: Random) -> tuple[str, str, int, float]:
    now = rig.loop.now + chance.random()
    choices = [*rig.pending, *(["timer"] if rig.timers else [])]
    location = chance.choice(choices)
    if location == "timer":
        timer = min(rig.timers.values(), key=lambda timer: timer.deadline)
        return "fire", timer.location, 0, max(now, timer.deadline)
    return ("fail" if chance.random() < 0.15 else "finish"), location, chance.randint(0, 9), now


def _feed(rig: Rig, fact: tuple[str, str, int, float]) -> None:
    kind, location, value, now = fact
    if location not in (rig.timers if kind == "fire" else rig.pending):
        raise Diverged(f"{location} was not asked for")
    rig.loop.now = now
    match kind:
        case "fire":
            rig.fire(location)
        case "fail":
            rig.fail(location, str(value))
        case _:
            rig.finish(location, value)


def _digest(rig: Rig) -> str:
    """Return the visible state of a run: its notes, its requests in order, its clock and its end."""
    timers = [(timer.location, timer.deadline) for timer in rig.timers.values()]
    tasks = [task.get_name() for task in rig.loop.unfinished]
    state = (rig.trace, list(rig.pending), timers, tasks, rig.loop.now, str(rig.loop.violation), rig.root.done())
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


# The programs: trees of nodes, each a kind and its children.

Node = tuple[str, int, tuple["Node", ...]]
Branch = Callable[[], Coroutine[Any, Any, int]]
Branches = list[Branch]
Form = Callable[[Rig, int, Branches], Coroutine[Any, Any, int]]


def _program(chance: Random, depth: int) -> Node:
    if depth == 0 or chance.random() < 0.1:
        return (chance.choice(("step", "step", "step", "sleep", "steps")), chance.randint(1, 4), ())
    kind = chance.choice(list(FORMS))
    width = chance.randint(2, 5 if depth == 1 else 3)
    return (kind, chance.randint(1, 4), tuple(_program(chance, depth - 1) for _ in range(width)))


async def _root(rig: Rig, program: Node) -> int:
    try:
        return await _run(rig, program)
    finally:
        rig.note("root ends")


async def _run(rig: Rig, node: Node) -> int:
    kind, number, children = node
    match kind:
        case "step":
            result = int(await rig.step(f"s{number}"))
            rig.note("step", number, result)
            return result
        case "steps":
            return sum(await asyncio.gather(*[rig.step(f"s{n}") for n in range(number)]))
        case "sleep":
            await asyncio.sleep(number)
            return number
        case _:
            branches: Branches = [partial(_branch, rig, child) for child in children]
            result = await FORMS[kind](rig, number, branches)
            rig.note(kind, result)
            return result


async def _branch(rig: Rig, node: Node) -> int:
    """A branch that notes its cancellation, and sometimes needs a step to clean up."""
    kind, number, _ = node
    try:
        return await _run(rig, node)
    except asyncio.CancelledError:
        rig.note("cancelled", kind)
        if number == 1:
            await rig.step("undo")
        raise
    except StepError as error:
        rig.note("failed", kind)
        if number % 2:
            return int(str(error))
        raise


async def _sequence(rig: Rig, number: int, branches: Branches) -> int:
    return sum([await branch() for branch in branches])


async def _gather(rig: Rig, number: int, branches: Branches) -> int:
    return sum(await asyncio.gather(*[branch() for branch in branches]))


async def _gather_errors(rig: Rig, number: int, branches: Branches) -> int:
    results = await asyncio.gather(*[branch() for branch in branches], return_exceptions=True)
    return sum(result for result in results if isinstance(result, int))


async def _group(rig: Rig, number: int, branches: Branches) -> int:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch()) for branch in branches]
            await rig.step("body")
    except ExceptionGroup as errors:
        rig.note("group", len(errors.exceptions))
        return -1
    return sum(task.result() for task in tasks)


async def _first_completed(rig: Rig, number: int, branches: Branches) -> int:
    pending = {asyncio.create_task(branch(), name=f"b{n}") for n, branch in enumerate(branches)}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        rig.note("done", [(task.get_name(), task.exception() is None) for task in done])
        rig.note("pending", [task.get_name() for task in pending])
        if number == 1:
            for task in pending:
                task.cancel()
            await rig.step("after the race")
    return number


async def _wait_all(rig: Rig, number: int, branches: Branches) -> int:
    when = asyncio.FIRST_EXCEPTION if number == 1 else asyncio.ALL_COMPLETED
    done, pending = await asyncio.wait([asyncio.create_task(branch()) for branch in branches], return_when=when)
    for task in [*done, *pending]:
        await rig.step(f"for {task.get_name()}")
        rig.note(task.get_name(), task.cancel())
    return sum(task.result() for task in done if not task.cancelled() and task.exception() is None)


async def _wait_timeout(rig: Rig, number: int, branches: Branches) -> int:
    done, pending = await asyncio.wait([asyncio.create_task(branch()) for branch in branches], timeout=number)
    for task in pending:
        task.cancel()
    rig.note([task.get_name() for task in done], [task.get_name() for task in pending])
    results = await asyncio.gather(*done, *pending, return_exceptions=True)
    return len([result for result in results if isinstance(result, int)])


async def _wait_gathers(rig: Rig, number: int, branches: Branches) -> int:
    gathers = [asyncio.gather(branch(), return_exceptions=True) for branch in branches]
    names = {gathered: n for n, gathered in enumerate(gathers)}
    pending = set(gathers)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        rig.note([names[gathered] for gathered in done], [names[gathered] for gathered in pending])
    return number


async def _timeout(rig: Rig, number: int, branches: Branches) -> int:
    try:
        async with asyncio.timeout(number):
            return await _sequence(rig, number, branches)
    except TimeoutError:
        return -1


async def _wait_for(rig: Rig, number: int, branches: Branches) -> int:
    total = 0
    for branch in branches:
        try:
            total += await asyncio.wait_for(branch(), number)
        except TimeoutError:
            total -= 1
    return total


async def _as_completed(rig: Rig, number: int, branches: Branches) -> int:
    total = 0
    for earliest in asyncio.as_completed([branch() for branch in branches]):
        try:
            total = 2 * total + await earliest
        except StepError:
            rig.note("one failed")
    return total % 1_000


async def _queue(rig: Rig, number: int, branches: Branches) -> int:
    queue: asyncio.Queue[int] = asyncio.Queue(1)

    async def produce(branch: Branch) -> None:
        await queue.put(await branch())

    async def consume(name: str) -> None:
        while True:
            rig.note(name, await queue.get())
            await rig.step(f"consume {name}")
            queue.task_done()

    consumers = [asyncio.create_task(consume(f"c{n}")) for n in range(number)]
    try:
        await asyncio.gather(*[produce(branch) for branch in branches])
        await queue.join()
    finally:
        for task in consumers:
            task.cancel()
    return number


async def _locks(rig: Rig, number: int, branches: Branches) -> int:
    gate = asyncio.Lock() if number == 1 else asyncio.Semaphore(number - 1)

    async def enter(branch: Branch, n: int) -> int:
        async with gate:
            rig.note("in", n)
            return await branch()

    return sum(await asyncio.gather(*[enter(branch, n) for n, branch in enumerate(branches)]))


async def _condition(rig: Rig, number: int, branches: Branches) -> int:
    condition, results = asyncio.Condition(), list[int]()

    async def watch(branch: Branch) -> None:
        try:
            results.append(await branch())
        finally:
            results.append(0)
            async with condition:
                condition.notify_all()

    watchers = [asyncio.create_task(watch(branch)) for branch in branches]
    async with condition:
        await condition.wait_for(lambda: len(results) > 1)
    await asyncio.wait(watchers)
    return sum(results)


async def _barrier(rig: Rig, number: int, branches: Branches) -> int:
    barrier = asyncio.Barrier(len(branches))

    async def meet(branch: Branch, n: int) -> int:
        result = await branch()
        rig.note("met", n, await barrier.wait())
        return result

    async with asyncio.timeout(60):
        return sum(await asyncio.gather(*[meet(branch, n) for n, branch in enumerate(branches)]))


async def _shield(rig: Rig, number: int, branches: Branches) -> int:
    tasks = [asyncio.create_task(branch()) for branch in branches]
    try:
        async with asyncio.timeout(number):
            await asyncio.gather(*[asyncio.shield(task) for task in tasks])
    except TimeoutError:
        rig.note("left")
    done, _ = await asyncio.wait(tasks)
    return len([task for task in done if not task.cancelled() and task.exception() is None])


async def _cleanup(rig: Rig, number: int, branches: Branches) -> int:
    try:
        return await branches[0]()
    finally:
        rig.note("cleanup")
        await rig.step("clean up")


async def _background(rig: Rig, number: int, branches: Branches) -> int:
    for branch in branches[1:]:
        asyncio.create_task(_forgiving(branch))  # noqa: RUF006 - forgetting it is the point
    return await branches[0]()


async def _forgiving(branch: Branch) -> int:
    try:
        return await branch()
    except StepError:
        return 0


async def _generator(rig: Rig, number: int, branches: Branches) -> int:
    async def results() -> AsyncIterator[int]:
        try:
            for branch in branches:
                yield await branch()
        finally:
            rig.note("generator ends")

    total = 0
    if number % 2:
        async for result in results():
            total += result
            if number == 1:
                break
    else:
        async with aclosing(results()) as generator:  # type: ignore[type-var]
            async for result in generator:
                total += result
                if number == 2:
                    break
    return total


async def _decision(rig: Rig, number: int, branches: Branches) -> int:
    value = int(await rig.step("decide"))
    return await branches[value % len(branches)]()


FORMS: dict[str, Form] = {
    form.__name__.strip("_"): form
    for form in (
        _sequence,
        _gather,
        _gather_errors,
        _group,
        _first_completed,
        _wait_all,
        _wait_timeout,
        _wait_gathers,
        _timeout,
        _wait_for,
        _as_completed,
        _queue,
        _locks,
        _condition,
        _barrier,
        _shield,
        _cleanup,
        _background,
        _generator,
        _decision,
    )
}


def replay_from_standard_input() -> None:
    """Replay recordings that came from another process."""
    for line in sys.stdin:
        given = json.loads(line)
        given["facts"] = [tuple(fact) for fact in given["facts"]]
        replay(Recording(**given))


def as_line(recording: Recording) -> str:
    return json.dumps(asdict(recording))


if __name__ == "__main__":
    replay_from_standard_input()
