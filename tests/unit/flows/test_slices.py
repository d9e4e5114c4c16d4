"""The work between two pauses: large programs do not hold the event loop of their worker."""

from __future__ import annotations

import pytest

from holdfast.flows.compiler import compile_flow
from holdfast.flows.limits import FlowLimits
from holdfast.flows.machine import Machine
from holdfast.flows.requests import FlowDone, FlowRaised, Sliced
from tests.unit.flows.actor import body

SLICE = 5_000


def machine_of(text: str, limits: FlowLimits | None = None) -> Machine:
    source = body(text)
    return Machine.begin(compile_flow(source), source, "{}", run_id="r", now=0, limits=limits or FlowLimits())


@pytest.mark.parametrize(
    "call", ["send('r', 'm')", "emit('t')", "start('x')", "h = sleep(1)", "log('x')", "set_value('v', 1)"]
)
def test_one_slice_makes_at_most_as_many_durable_calls_as_one_checkpoint_carries_out(call: str) -> None:
    machine = machine_of(f"for i in range(1000):\n    {call}")

    assert isinstance(machine.run(SLICE), Sliced)
    assert 0 < len(machine.take_requests()) <= FlowLimits().requests_per_checkpoint


def test_program_pauses_after_a_large_map() -> None:
    machine = machine_of("map('x', [{}] * 1000)\nlog('after')")
    machine.run(1)

    while not (requests := machine.take_requests()):
        assert isinstance(machine.run(SLICE), Sliced)
    assert len(requests) == 1


@pytest.mark.parametrize("group", ["join", "race", "first_settled"])
def test_groups_of_many_handles_cost_instructions_and_state(group: str) -> None:
    machine = machine_of(f"x = [sleep(9) for i in range(1000)]\ny = []\nwhile True:\n    y.append({group}(x))")
    made = 0
    while isinstance(machine.run(SLICE), Sliced):
        made += 1
        machine.take_requests()

    assert made < 200  # the state would have hundreds of megabytes otherwise
    assert len(machine.handles.table) < 1_200


def test_facts_and_snapshots_count_as_work() -> None:
    machine = machine_of("x = [[i] for i in range(100)]\nfor i in range(3):\n    await sleep(1)")
    machine.run(SLICE)
    (request,) = machine.take_requests()
    before = machine.work
    machine.snapshot()
    after_snapshot = machine.work
    machine.settle(request.handle, FlowDone("null"), 1)

    assert after_snapshot - before >= 400
    assert machine.work - after_snapshot >= 50


def test_state_is_measured_only_if_it_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of paths that wake one after the other do not write hundreds of snapshots."""
    machine = machine_of("for i in range(100):\n    await sleep(1)")
    encoded: list[Machine] = []
    monkeypatch.setattr(Machine, "_encoded", encoded.append)
    machine.run(SLICE)
    for _ in range(99):
        (request,) = machine.take_requests()
        machine.settle(request.handle, FlowDone("null"), 1)
        machine.run(SLICE)

    assert encoded == []


def test_state_of_too_many_parts_fails_the_run() -> None:
    machine = machine_of("x = []\nwhile True:\n    x.append([1])", FlowLimits(state_parts=1_000))
    while isinstance(progress := machine.run(SLICE), Sliced):
        pass

    assert "state_parts" in str(progress)


def test_state_that_grows_a_little_in_each_turn_fails_the_run_too() -> None:
    limits = FlowLimits(state_parts=1_000)
    text = "x = []\nwhile True:\n    x += [[i] for i in range(50)]\n    await sleep(1)"
    machine, progress, turns = machine_of(text, limits), None, 0
    while not isinstance(progress := machine.run(SLICE), FlowRaised) and turns < 100:
        for request in machine.take_requests():
            machine = Machine.resume(compile_flow(body(text)), body(text), machine.snapshot(), limits=limits)
            machine.settle(request.handle, FlowDone("null"), 1)
            turns += 1

    assert "state_parts" in str(progress)
