"""A session: a storm on a store from beginning to end, and the verdict. The evidence of violations is kept."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import msgspec

from holdfast import HoldfastError
from tests.chaos.display import Display
from tests.chaos.evidence import Evidence
from tests.chaos.places import place_on
from tests.chaos.plan import Plan, fitted
from tests.chaos.storm import Storm
from tests.chaos.verdict import Verdict, judge, proof_of

_PROVED = 3
"""Maximum number of runs that are shown in full."""


async def hold(store: str, plan: Plan, display: Display, folder: Path | None = None) -> Verdict:
    """Run a storm. The folder is a new one unless given; it is removed if all invariants hold."""
    where = folder or Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    with place_on(store, where) as place:
        plan = await asyncio.to_thread(fitted, plan)
        display.say(f"leases of {plan.lease_seconds:g} s, seed {plan.seed}, everything is in {where}")
        storm = Storm(place, plan, display)
        async with storm.crew.hf:
            evidence = await storm.rage()
            verdict = judge(evidence, store, plan.seed, is_timed=plan.is_timed)
            if not verdict.is_good:
                proof = await _proof(storm, evidence, verdict)
                (where / "evidence.json").write_bytes(msgspec.json.encode(evidence))
                place.dump()
                return msgspec.structs.replace(verdict, folder=str(where), proof=proof)
    if folder is None:
        shutil.rmtree(where)
    return verdict


async def _proof(storm: Storm, evidence: Evidence, verdict: Verdict) -> list[str]:
    suspects = dict.fromkeys(
        violation.run_id for check in verdict.checks for violation in check.violations if violation.run_id
    )
    lines: list[str] = []
    for run_id in list(suspects)[:_PROVED]:
        story = evidence.stories.get(run_id)
        if story is None:
            lines.append(f"--- run {run_id} is not in the store")
            continue
        try:
            explanation = await storm.crew.hf.run(run_id).explain()
        except HoldfastError as error:
            explanation = f"cannot be explained: {error}"
        lines += proof_of(story, evidence, explanation)
    return lines
