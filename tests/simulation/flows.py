"""Flows in a simulation: the tasks and workflows that they call, and the verdict on what has come of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast import Context, Fatal, Holdfast, Registry, step_info
from holdfast.core.entries import TURN_PREFIX
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.runner.flow_turn import KEPT_TURNS
from holdfast.stores.memory.state import Record, State
from tests.programs.flow_text import ECHO, ENDLESS, FRAGILE, FRIEND, LEAF, MIXED, TASK, FlowExpectation
from tests.simulation.crowd import PATIENT

FRAGILE_FAILURES = 2
"""Number of times that each fragile task fails for good, until it has been recovered this often."""

OTHER_TEXT = 'async def main(part=0, found=None):\n    return "another version"\n'
"""A newer version of a flow, which runs that already exist must not take."""


def build(registry: Registry) -> None:
    """Register what flows call."""
    failures: Counter[str] = Counter()

    @registry.task(TASK, retry=PATIENT, crash_limit=30)
    async def task(n: int, value: float | None = None) -> float:
        return n if value is None else value

    @registry.task(MIXED, retry=PATIENT, crash_limit=30)
    async def mixed(n: int) -> int:
        if n % 2:
            raise Fatal(f"never {n}")
        return n

    @registry.task(FRAGILE, retry=PATIENT, crash_limit=30)
    async def fragile(n: int) -> int:
        failures[step_info().run_id] += 1
        if failures[step_info().run_id] <= FRAGILE_FAILURES:
            raise Fatal("not yet repaired")
        return n

    _build_workflows(registry)


def _build_workflows(registry: Registry) -> None:
    async def number_of(n: int) -> int:
        return n

    @registry.workflow(FRIEND, crash_limit=30)
    async def friend(ctx: Context, n: int) -> list[Any]:
        first = await ctx.step("number", number_of, n, retry=PATIENT)
        await ctx.sleep(2)
        return [first, await ctx.call(LEAF, {"n": n})]

    @registry.workflow(ECHO, crash_limit=30)
    async def echo(ctx: Context, n: int) -> Any:
        return await ctx.receive("say")

    @registry.workflow(ENDLESS, crash_limit=30)
    async def endless(ctx: Context, n: int) -> None:
        await ctx.receive("never")


async def register(hf: Holdfast, expectations: Sequence[FlowExpectation]) -> None:
    """Register the texts of flows."""
    for expected in expectations:
        for type, text in expected.texts.items():
            await hf.flows.register(text, type=type)


def family_of(state: State, run_id: str) -> list[Record]:
    """Return a run and everything below it."""
    family = [run_id]
    for parent_id in family:
        family += [record.run.id for record in state.records.values() if record.run.parent_id == parent_id]
    return [state.records[member] for member in family]


def problems(
    state: State, name: str, expected: FlowExpectation, bodies: Mapping[tuple[str, int, str], int], *, losses: int
) -> Iterator[str]:
    """Return what is wrong with a flow and the runs below it. `losses` is how often workers were lost."""
    root, *children = family_of(state, name)
    result = None if root.run.result is None else json.loads(root.run.result)
    if root.run.state is not RunState.SUCCEEDED or result != expected.result:
        yield f"I4: flow {name} is {root.run.state} with {result or root.run.error}, not {expected.result}"
    found = Counter((record.run.type, _number_of(record.run)) for record in children)
    if found != expected.children:
        more, fewer = found - expected.children, expected.children - found
        yield f"I1: flow {name} has started {dict(more)} too often, and {dict(fewer)} not often enough"
    for record in (root, *children):
        yield from _run_problems(record, expected)
    counts = {record.run.id: record.run.type for record in children if record.run.type in (TASK, MIXED)}
    for (run_id, _, location), count in bodies.items():
        if run_id in counts and count > 1 + losses:
            yield f"I10: {counts[run_id]} {run_id} was begun {count} times at {location}, after {losses} losses"


def _run_problems(record: Record, expected: FlowExpectation) -> Iterator[str]:
    run = record.run
    if run.type == ENDLESS and run.state is not RunState.CANCELLED:
        yield f"I1: {run.id} is {run.state}, and the flow above it has cancelled it"
    if run.type in (TASK, FRIEND, ECHO, FRAGILE) and run.state is not RunState.SUCCEEDED:
        yield f"I4: {run.type} {run.id} is {run.state}: {run.error}"
    for (type, name), value in expected.values.items():
        if run.type == type and record.values.get(name) != str(value):
            yield f"I4: the value {name} of {run.id} is {record.values.get(name)}, not {value}"
    turns = [location for location in record.entries if location.startswith(TURN_PREFIX)]
    if len(turns) > 2 * KEPT_TURNS:
        yield f"I8: flow {run.id} keeps {len(turns)} snapshots"


def _number_of(run: Run) -> int:
    return int(json.loads(run.payload).get("n", 0))
