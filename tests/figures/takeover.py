"""Time that a run waits for another worker after its own was killed."""

from __future__ import annotations

from tests.figures.series import measured, report
from tests.process.app import story
from tests.process.crew import Crew, facts, on_every_store

TIMES = 5
LEASE_SECONDS = 2.0
"""On a server a killed worker is noticed when its lease is over."""
PROBE_SECONDS = 1.0
"""Interval at which SQLite workers check whether others live; their own lease does not matter."""
SLACK_SECONDS = 1.0


@on_every_store
async def test_a_worker_that_stands_by_takes_over(crew: Crew) -> None:
    limit = SLACK_SECONDS + (PROBE_SECONDS if crew.hears_of_deaths else LEASE_SECONDS)

    async def takeover() -> float:
        gate = crew.gate(f"gate-{len(crew.hands)}")
        run = await crew.hf.start(story, crew.book, str(gate))
        killed = await crew.hire(lease=60.0 if crew.hears_of_deaths else LEASE_SECONDS)
        await crew.begun(run, "middle", killed)
        heir = await crew.hire()
        killed.kill()
        gate.touch()
        await crew.result(run)
        heir.kill()
        (_, again) = await facts(run, "claimed")
        assert killed.killed_at is not None
        return again.at.timestamp() - killed.killed_at

    took = await measured(TIMES, takeover)

    report(f"{TIMES} takeovers, the limit is {limit:g} s:", took)
    assert max(took) < limit
