"""The verdict on a storm: a row for each invariant, the figures, and full details of each violation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from holdfast.cli.output import Column, Table, plain_lines
from holdfast.core.clock import SECOND
from tests.chaos.evidence import Evidence, Story
from tests.chaos.invariants import Check, Kind, Violation, check_all

SUSPECT_CRASHES = 3
"""The claim with this number is of a suspect, which waits for a worker without other runs."""
KINDS: tuple[Kind, ...] = ("lost", "wrong", "stuck", "stale", "duplicate")
_SHOWN = 5


class Figures(msgspec.Struct, frozen=True):
    """Counts and measurements. Takeovers are in seconds; `aim` is their limit."""

    runs: int
    steps: int
    seconds: float
    runs_per_second: float
    lost: int
    wrong: int
    stuck: int
    stale: int
    duplicate: int
    late_bodies: int
    takeovers: int
    takeover_p50: float
    takeover_p99: float
    takeover_most: float
    takeover_aim: float
    blows: dict[str, int]


class Verdict(msgspec.Struct, frozen=True):
    """`proof` is all that is known of the first runs with a violation."""

    store: str
    seed: str
    is_good: bool
    checks: list[Check]
    figures: Figures
    folder: str = ""
    proof: list[str] = []

    def lines(self) -> Iterator[str]:
        """Return a report for people."""
        table = Table([Column("invariant"), Column("what"), Column("checked", is_number=True), Column("verdict")])
        for check in self.checks:
            held = "holds" if not check.violations else f"{len(check.violations)} VIOLATIONS"
            table.rows.append(
                {"invariant": check.invariant, "what": check.what, "checked": f"{check.count:,}", "verdict": held}
            )
        yield from plain_lines(table)
        yield ""
        yield from self._figure_lines()
        for check in self.checks:
            for violation in check.violations[:_SHOWN]:
                yield f"{check.invariant}: {violation.run_id} {violation.text}"
        yield from self.proof
        if self.folder:
            yield f"everything is kept in {self.folder}"
        yield f"{'all holds' if self.is_good else 'NOT ALL HOLDS'}: {self.store}, seed {self.seed}"

    def _figure_lines(self) -> Iterator[str]:
        one = self.figures
        counts = [f"{kind} {getattr(one, kind)}" for kind in KINDS]
        yield "  ".join([*counts, f"(bodies begun after their record: {one.late_bodies})"])
        yield (
            f"takeovers {one.takeovers}: p50 {one.takeover_p50:.2f} s, p99 {one.takeover_p99:.2f} s, most "
            f"{one.takeover_most:.2f} s (aim: {one.takeover_aim:g} s)"
        )
        yield f"{one.runs:,} runs, {one.steps:,} step bodies in {one.seconds:.0f} s: {one.runs_per_second:.1f} runs/s"
        yield "blows: " + ", ".join(f"{name} {count}" for name, count in sorted(one.blows.items()))


def judge(evidence: Evidence, store: str, seed: str, *, is_timed: bool = False) -> Verdict:
    """Judge the evidence. The duration of takeovers counts only if it `is_timed`."""
    took = takeovers(evidence)
    checks = [*check_all(evidence), *([_in_time(took, evidence.lease_seconds + 1)] if is_timed else [])]
    violations = [violation for check in checks for violation in check.violations]
    kinds = Counter(violation.kind for violation in violations)
    seconds = sorted(second for second, _ in took)
    figures = Figures(
        runs=len(evidence.ended),
        steps=sum(map(len, evidence.executions.values())),
        seconds=evidence.seconds,
        runs_per_second=len(evidence.ended) / evidence.seconds,
        **{kind: kinds[kind] for kind in KINDS},
        late_bodies=_late_bodies(evidence),
        takeovers=len(took),
        takeover_p50=_percentile(seconds, 0.5),
        takeover_p99=_percentile(seconds, 0.99),
        takeover_most=_percentile(seconds, 1),
        takeover_aim=evidence.lease_seconds + 1,
        blows=evidence.blows,
    )
    return Verdict(store, seed, not violations, checks, figures)


def takeovers(evidence: Evidence) -> list[tuple[float, str]]:
    """Return the time from the last sign of life of a worker until another claimed its run, and the run.

    Not counted are suspects, which wait on purpose, and takeovers during an outage of the store.
    """
    found = []
    fates = {fate.worker_id: fate for fate in evidence.fates}
    for story in evidence.stories.values():
        for before, fact in pairwise(story.claims):
            fate = fates.get(str(fact.data["lost"])) if "lost" in fact.data else None
            if fate is None or int(fact.data["crashes"]) >= SUSPECT_CRASHES:
                continue
            held_at, at = before.at / SECOND, fact.at / SECOND
            silent = [begun for begun, end in fate.stopped if begun <= at and end >= held_at]
            silent += [fate.killed_at] if fate.killed_at is not None and fate.killed_at <= at else []
            since = max(silent, default=None)  # in between it was alive
            if since is not None and not any(begun <= at and end >= since for begun, end in evidence.outages):
                found.append((at - since, story.run.id))
    return found


def _late_bodies(evidence: Evidence) -> int:
    """Return bodies that a worker started although another had finished the step: it was frozen and did not know."""
    count = 0
    for (run_id, location), deeds in evidence.executions.items():
        story = evidence.stories.get(run_id)
        recorded = next((deed for deed in deeds if story and deed.mark == story.marks.get(location)), None)
        count += sum(recorded is not None and deed.at > recorded.at for deed in deeds)
    return count


def _in_time(took: list[tuple[float, str]], aim: float) -> Check:
    late = [
        Violation(f"it took {seconds:.2f} s until another worker took over, not {aim:g}", run_id)
        for seconds, run_id in took
        if seconds > aim
    ]
    return Check("takeover", "within the lease and a second", len(took), late)


def _percentile(values: list[float], part: float) -> float:
    return values[max(0, math.ceil(len(values) * part) - 1)] if values else 0.0


def proof_of(story: Story, evidence: Evidence, explanation: str) -> Iterator[str]:
    """Return all that is known of a run."""
    run = story.run
    yield f"--- run {run.id} ({run.type}, {run.state.value}, token {run.token}): {explanation}"
    yield from (f"  history  {entry}" for entry in story.entries)
    yield from (f"  audit    {fact.at / SECOND:.6f} {fact.event} {fact.data}" for fact in story.facts)
    yield from (f"  ledger   {deed}" for deed in evidence.deeds if deed.run_id == run.id)
    yield from (f"  journal  {one}" for one in evidence.accepted if one.run_id == run.id)
