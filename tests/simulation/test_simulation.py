"""Simulations: every seed keeps all promises, and behaves the same each time it is played.

The long tier plays 1,000 seeds; `HOLDFAST_SIMULATION_SEEDS=5000` plays that many.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Context, Holdfast, InvalidRequest, Registry, RunInfo
from holdfast.app import session_of
from holdfast.core import rules
from holdfast.core.questions import ListTopics, ListTypes
from holdfast.runner.flow_requests import FlowRequests
from holdfast.testing.simulation.adversity import Blow, Fault
from holdfast.testing.simulation.loop import Process, SimulatedLoop
from holdfast.testing.simulation.watch import Violation
from tests.duration import lasting
from tests.plugin.tiers import amount
from tests.programs.changed import CHANGES, Change
from tests.programs.flow_text import expectation_of
from tests.programs.flow_vocabulary import FlowGardener
from tests.simulation.__main__ import main
from tests.simulation.outcome import played, world_of
from tests.simulation.plan import Act, Deploy, Plan, plan_of
from tests.simulation.shrink import shrunk

SEEDS = amount(short=12, long=1_000, variable="HOLDFAST_SIMULATION_SEEDS")
BATCHES = amount(short=6, long=40)
FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))


@pytest.mark.both_tiers
@lasting(SEEDS / BATCHES / 2)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_seed_breaks_a_promise(batch: int) -> None:
    for seed in range(batch, SEEDS, BATCHES):
        outcome = played(plan_of(seed))
        assert not outcome.rule, f"seed {seed}: {outcome.what}"


@pytest.mark.both_tiers
@pytest.mark.parametrize("what", CHANGES)
def test_runs_of_a_bad_deploy_succeed_when_only_the_right_code_is_left(what: str) -> None:
    misfits = 0
    for seed in range(amount(short=3, long=8)):
        plan = plan_of(seed)
        change = Change(what=what, number=seed)
        plan.deploys = [Deploy(at=1.0, until=400.0, worker=worker, change=change) for worker in range(plan.workers)]
        world = world_of(plan)
        world.play()
        world.check_result()
        misfits += world.watch.misfits
    assert misfits > 0


def test_plans_that_once_failed_stay_fixed() -> None:
    for path in FOUND:
        outcome = played(msgspec.json.decode(path.read_bytes(), type=Plan))
        assert not outcome.rule, f"{path.name}: {outcome.what}"


@pytest.mark.long
def test_a_seed_behaves_the_same_in_every_process() -> None:
    """Also where sets of strings are iterated in another order."""
    script = (
        "from tests.simulation.outcome import played; from tests.simulation.plan import plan_of; "
        "print(*[played(plan_of(seed)).digest for seed in range(6)])"
    )
    lines = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    here = [played(plan_of(seed)).digest for seed in range(6)]
    assert lines[0].split() == lines[1].split() == here


def forget_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept every write without checking the token."""

    def judge(run: Any, _: Any) -> str:
        return "lost" if run is None else "apply" if run.is_held else "applied"

    monkeypatch.setattr(rules, "judge", judge)


def late_writers(chance: int) -> Plan:
    """A plan in which two of three workers freeze, and their checkpoints arrive after their leases are over.

    The plan also contains acts that do not need the fence, so that it can be made smaller.
    """
    return Plan(
        chance=chance,
        workers=3,
        programs=[{"parts": [["seq", [["step", number, 1, 0] for number in (1, 2, 3)]]]}],
        acts=[Act(at=0.0, what="program"), Act(at=500.0, what="offer")],
        blows=[Blow(at=20.0, what="freeze", worker=worker, seconds=100.0) for worker in (0, 1)],
        faults=[Fault(worker=worker, call="checkpoint", number=1, what="delay") for worker in (0, 1)]
        + [Fault(worker=2, call="prune", number=1, what="lose")],
    )


def test_a_broken_fence_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_the_fence(monkeypatch)
    # Many plans, because random choices decide whether the run is held when the late checkpoint arrives.
    plans = map(late_writers, range(100))
    plan = next((plan for plan in plans if played(plan).rule == "I5"), None)
    assert plan is not None, "no late checkpoint was noticed"

    smallest = shrunk(plan, lambda smaller: played(smaller).rule == "I5", tries=40)

    assert played(smallest).rule == "I5"
    assert len(msgspec.json.encode(smallest)) < len(msgspec.json.encode(plan))
    assert smallest.blows or smallest.faults, "nothing has to go wrong?"


def test_a_working_fence_causes_no_failure() -> None:
    for chance in range(20):
        assert not played(late_writers(chance)).rule


@pytest.mark.long
def test_the_command_reports_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(rules, "woken", lambda run, now: run)  # arrivals wake no run, which most seeds notice
    seed = next(seed for seed in range(400) if played(plan_of(seed)).rule)

    options = ["--jobs", "1", "--json", "--tries", "10", "--keep", str(tmp_path)]
    code = main(["--seeds", "1", "--first", str(seed), *options])

    shown = capsys.readouterr()
    (violation,) = json.loads(shown.out)["violations"]
    assert code == 1
    assert violation["is_repeatable"] is True
    assert f"seed {seed} goes wrong" in shown.err
    assert (tmp_path / f"{seed}.json").exists()
    assert main(["--plan", str(tmp_path / f"{seed}.json")]) == 1


def test_the_command_reports_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--jobs", "1"]) == 0
    assert "2 of 2 seeds, 0 went wrong" in capsys.readouterr().out
    assert main(["--only", "0"]) == 0
    assert "nothing went wrong" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--plan", "no such file"], ["--jobs", "0"]])
def test_the_command_refuses_invalid_options(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(wrong)
    assert left.value.code == 2
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.parametrize(("text", "why"), [("{", "truncated"), ("{}", "chance"), (None, "directory")])
def test_the_command_refuses_a_file_that_is_not_a_plan(
    text: str | None, why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path
    if text is not None:
        path = tmp_path / "plan.json"
        path.write_text(text)
    with pytest.raises(SystemExit) as left:
        main(["--plan", str(path)])
    assert left.value.code == 2
    assert why in capsys.readouterr().err


shop = Registry()


@shop.workflow
async def order(ctx: Context, item: str) -> str:
    approval = await ctx.receive("approval")
    await ctx.sleep(3600)
    return f"{item}: {approval}"


def test_user_workflows_are_simulated(simulate: Callable[..., None]) -> None:
    finished: list[str] = []

    async def scenario(hf: Holdfast) -> None:
        run = await hf.start(order, "shoes")
        await run.send("approval", "yes")
        finished.append(await run.result())

    simulate(shop, scenario, seeds=20)

    assert finished == ["shoes: yes"] * 20


def test_flows_of_users_are_simulated(simulate: Callable[..., None]) -> None:
    finished: list[Any] = []

    async def scenario(hf: Holdfast) -> None:
        text = "async def main(item: str):\n    await sleep(60)\n    return await call('order', item=item)\n"
        await hf.flows.register(text, type="order.flow")
        run = await hf.start("order.flow", {"item": "shoes"})
        (child,) = [info async for info in until_found(hf, "order")]
        await hf.run(child.id).send("approval", "yes")
        finished.append(await run.result())

    simulate(shop, scenario, seeds=5)

    assert finished == ["shoes: yes"] * 5


async def until_found(hf: Holdfast, type: str) -> AsyncIterator[RunInfo]:
    """Yield the runs of a type, once there are some."""
    while not (found := [info async for info in hf.list(type=type)]):
        await asyncio.sleep(60)
    for info in found:
        yield info


def test_random_flows_call_everything() -> None:
    programs = [FlowGardener(f"flow {seed}", count=0).grow() for seed in range(100)]
    texts = [text for each in programs for text in expectation_of(each, "flow").texts.values()]

    for name in ("call", "start", "map", "sleep", "receive", "receive_batch", "wait_event", "send", "emit", "join"):
        assert any(f"{name}(" in text for text in texts), name
    for name in ("race", "first_settled", "set_value", "cancel", "continue_as_new"):
        assert any(f"{name}(" in text for text in texts), name


def flows_only(seed: int) -> Plan:
    """The flows of a seed with a determined outcome, without anything else and without faults."""
    plan = plan_of(seed)
    return Plan(chance=seed, flows=plan.flows, acts=[act for act in plan.acts if act.what == "flow"])


def test_a_recovered_flow_that_forgets_its_children_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowRequests, "adopt", lambda *_: None)

    plans = [plan for plan in map(flows_only, range(30)) if "finally" in str(plan.flows)]

    assert any(played(plan).rule == "I1" for plan in plans)


def test_a_scenario_has_its_own_types_and_topics(simulate: Callable[..., None]) -> None:
    """Types and topics of holdfast's own simulations have limits and rules."""
    found: list[tuple[int, int]] = []

    async def scenario(hf: Holdfast) -> None:
        found.append(
            (
                len(await session_of(hf).store.catalog(ListTopics())),
                sum(rule.is_limited for rule in await session_of(hf).store.catalog(ListTypes())),
            )
        )

    simulate(shop, scenario, seeds=1)

    assert found == [(0, 0)]


def test_a_scenario_that_waits_forever_is_reported_with_the_reason(simulate: Callable[..., None]) -> None:
    async def scenario(hf: Holdfast) -> None:
        run = await hf.start(order, "shoes")
        await run.result()

    with pytest.raises(Violation, match=r"the scenario waits for something that never happens.*approval"):
        simulate(shop, scenario, seeds=1)


async def test_simulating_inside_an_event_loop_is_refused(simulate: Callable[..., None]) -> None:
    async def scenario(_: Holdfast) -> None: ...

    with pytest.raises(InvalidRequest, match="not async"):
        simulate(shop, scenario)


def test_simulating_zero_seeds_is_refused(simulate: Callable[..., None]) -> None:
    async def scenario(_: Holdfast) -> None: ...

    with pytest.raises(InvalidRequest, match="seeds=0"):
        simulate(shop, scenario, seeds=0)


def test_an_assertion_of_a_scenario_is_reported_with_the_seed(simulate: Callable[..., None]) -> None:
    async def scenario(hf: Holdfast) -> None:
        run = await hf.start(order, "shoes")
        await run.send("approval", "yes")
        assert await run.result() == "hats"

    with pytest.raises(AssertionError) as failed:
        simulate(shop, scenario, seeds=1, first=3)
    assert "seed 3" in "".join(failed.value.__notes__)


def test_a_killed_process_does_nothing_more_and_a_frozen_one_continues() -> None:
    done: list[str] = []
    errors: list[dict[str, Any]] = []
    loop = SimulatedLoop(pause=lambda: 0.0, on_error=errors.append, callback_limit=1_000)
    killed, frozen = Process("killed"), Process("frozen")

    async def direct() -> None:
        for process in (killed, frozen):
            loop.in_name_of(process, 1, done.append, process.name)
        loop.kill(killed)
        loop.freeze(frozen)
        loop.call_later(5, loop.thaw, frozen)
        while len(done) < 1:
            await sleep(1)

    async def sleep(seconds: float) -> None:
        waiting = loop.create_future()
        loop.call_later(seconds, waiting.set_result, None)
        await waiting

    loop.run_until_complete(direct())
    loop.close()

    assert done == ["frozen"]
    assert 5 <= loop.time() <= 6
    assert errors == []


def test_a_violation_names_the_rule() -> None:
    assert str(Violation("I5", "an old token")) == "I5: an old token"
