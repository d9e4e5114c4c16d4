"""Crashes of a flow whose checkpoints have no room for all that its program asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Context, Registry
from holdfast.flows.limits import DEFAULT_FLOW_LIMITS
from holdfast.runner.flow_turn import FlowTurn
from holdfast.testing.harness import Harness
from tests.crash.rehearsal import Outcome, Script, play
from tests.programs.ledger import EffectLedger

ONE = "h = start('endless')\n    await sleep(1)\n    for n in range(33):\n        emit('t', n)"
MANY = "h = map('endless', [{}] * 33)"


@pytest.fixture(autouse=True)
def few_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults: dict[str, Any] = FlowTurn.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "limits", replace(DEFAULT_FLOW_LIMITS, requests_per_checkpoint=10))


def cancelling(begun: str) -> Script:
    def build(app: Registry, _: EffectLedger) -> None:
        @app.workflow
        async def endless(ctx: Context) -> None:
            await ctx.receive("never")

    async def act(h: Harness) -> None:
        text = f"async def main():\n    {begun}\n    cancel(h)\n    await receive('go')\n"
        await h.flows.register(text, type="flow")
        await h.start("flow", id="main")
        await h.advance(60)
        await h.settle()

    return Script("cancelling", build, act)


def states(outcome: Outcome) -> dict[str, int]:
    """Return how many children are in each state. A child that was never started counts as cancelled."""
    found = [facts[0] for name, facts in outcome.runs.items() if name != "main"]
    return {state: found.count(state) for state in set(found) - {"cancelled"}}


@pytest.mark.parametrize("begun", [ONE, MANY], ids=["one child", "a map"])
async def test_children_are_cancelled_after_a_crash_before_the_checkpoint_that_cancels_them(
    begun: str, tmp_path: Path
) -> None:
    """The machine has forgotten the children by then, and only the snapshot knows them."""
    script = cancelling(begun)
    undisturbed = await play(script, "memory", tmp_path)
    assert states(undisturbed) == {}

    for number in range(2, len(undisturbed.calls) + 1):
        disturbed = await play(script, "memory", tmp_path, crashes=((number, "after"),))
        assert states(disturbed) == {}, f"after a crash at call {number}"
