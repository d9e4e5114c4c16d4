"""The crowd: small workflows beside the programs, typical of what people run. Their documented behaviour is checked.

Mailboxes get letters from two concurrent senders, each of which writes in order. Runs of a limited type wait for each
other, and their bodies never return the same value twice. Those of a rated one wait for their time. Takers share the
events of a queue. Ticks are created by a schedule, or started by a key or with a delay, and have a short retention. A
deadly one kills its worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast import Context, Holdfast, Registry, Retry, WaitTimeout, step_info
from holdfast.app import session_of
from holdfast.core.commands import EmitEvents
from holdfast.core.model import Event, Run, derived_id
from holdfast.core.rules import CRASH_LIMIT
from holdfast.core.states import RunState
from holdfast.stores.memory.state import State

PATIENT = Retry(max_attempts=9, initial=0, jitter=0)
TENANTS = ("a", "b", "c")
QUEUE = "queue.jobs"
SENDERS = 2


async def work() -> str:
    """A body."""
    return "done"


class Marks:
    """A body that returns a different mark on each execution, and records which one the code received, by run."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str]] = []
        self._count = 0

    async def make(self, before: str = "") -> str:
        if before:
            self.received.append((step_info().run_id, before))
        self._count += 1
        return f"mark {self._count}"


def build(registry: Registry, kill: Callable[[], None]) -> Marks:
    """Register the workflows. `kill` makes the calling process vanish."""
    _build_others(registry, kill)
    marks = Marks()

    @registry.workflow("mailbox", crash_limit=30)
    async def mailbox(ctx: Context, count: int) -> list[Any]:
        got: list[Any] = []
        while len(got) < count:
            got.append(await ctx.receive("letter"))
            if len(got) % 2:
                await ctx.step("sort", work, retry=PATIENT)
        return got

    @registry.workflow("limited", crash_limit=30)
    async def limited(ctx: Context) -> list[str]:
        first = await ctx.step("work", marks.make, retry=PATIENT)
        await ctx.sleep(2)
        return [first, await ctx.step("more", marks.make, first, retry=PATIENT)]

    @registry.workflow("taker", crash_limit=30)
    async def taker(ctx: Context, patience: float | None = None) -> Any:
        try:
            found = await ctx.wait_event(QUEUE, timeout=patience)
        except WaitTimeout:
            return None
        await ctx.step("use", work, retry=PATIENT)
        return found

    return marks


def _build_others(registry: Registry, kill: Callable[[], None]) -> None:
    @registry.workflow("rated", crash_limit=30)
    async def rated(ctx: Context) -> str:
        return await ctx.step("work", work, retry=PATIENT)

    @registry.workflow("tick", crash_limit=30)
    async def tick(ctx: Context) -> str:
        await ctx.sleep(3)
        return await ctx.step("work", work, retry=PATIENT)

    async def die() -> None:
        kill()

    @registry.workflow("deadly")
    async def deadly(ctx: Context) -> None:
        await ctx.step("die", die, retry=PATIENT)


async def set_rules(hf: Holdfast) -> None:
    """The rules of topics and types."""
    await hf.topics.set("queue*", mode="queue")
    await hf.types.set("limited", concurrency=2, per_key={"tenant": 1})
    await hf.types.set("rated", rate=(2, 30))
    await hf.types.set("tick", retention=40)


async def write_letters(hf: Holdfast, run: str, sender: int, count: int) -> None:
    for number in range(count):
        await hf.run(run).send("letter", [sender, number], id=f"{run}-{sender}-{number}")


async def offer(hf: Holdfast, number: int) -> None:
    await session_of(hf).store.apply(
        EmitEvents(events=[Event(id=derived_id(f"offer {number}", 0), topic=QUEUE, payload=str(number))])
    )


def problems(state: State, bodies: Mapping[tuple[str, int, str], int]) -> Iterator[str]:
    """Return wrong outcomes. `bodies` is the number of calls of each, by run, generation and location."""
    runs = [record.run for record in state.records.values()]
    taken: list[Any] = []
    for run in runs:
        if run.state is not RunState.SUCCEEDED:
            continue
        result = json.loads(run.result or "null")
        if run.type == "mailbox":
            yield from _mixed_up(run, result)
        if run.type == "taker" and result is not None:
            taken.append(result)
    if len(set(taken)) < len(taken):
        yield f"I6: events of a queue were taken more than once: {sorted(taken)}"
    deadly = {run.id for run in runs if run.type == "deadly"}
    for (run_id, _, _), count in bodies.items():
        if run_id in deadly and count > CRASH_LIMIT:
            yield f"I11: {run_id} has killed {count} workers, and should have been blocked after {CRASH_LIMIT}"


def differences(state: State, marks: Marks) -> Iterator[str]:
    """Return where a body or a result had another mark than the recorded one."""
    for run_id, received in marks.received:
        if received != _recorded(state, run_id, "work"):
            yield f"I4: {run_id} received {received}, and {_recorded(state, run_id, 'work')} is recorded"
    for run_id, record in state.records.items():
        if record.run.type == "limited" and record.run.state is RunState.SUCCEEDED:
            marked = [_recorded(state, run_id, location) for location in ("work", "more")]
            if json.loads(record.run.result or "null") != marked:
                yield f"I4: the result of {run_id} is {record.run.result}, and {marked} are recorded"


def _recorded(state: State, run_id: str, location: str) -> Any:
    entry = state.records[run_id].entries.get(location)
    return None if entry is None or entry.result is None else json.loads(entry.result)


def _mixed_up(run: Run, letters: list[list[int]]) -> Iterator[str]:
    for sender in range(SENDERS):
        numbers = [number for of, number in letters if of == sender]
        if numbers != list(range(len(letters) // SENDERS)):
            yield f"I6: {run.id} got the letters of sender {sender} as {numbers}"
