"""Time until a run can be claimed by others after its worker was stopped in the middle of a long step."""

from __future__ import annotations

import sys
import time

from holdfast import RunState
from tests.process.app import story
from tests.process.crew import LONG_LEASE_SECONDS, Crew, on_every_store

GRACE_SECONDS = 5.0
LIMIT_SECONDS = 1.0


@on_every_store
async def test_a_run_with_a_long_step_is_given_back_after_the_grace(crew: Crew) -> None:
    run = await crew.hf.start(story, crew.book, str(crew.gate()), "hang")
    worker = await crew.hire(grace=GRACE_SECONDS, lease=LONG_LEASE_SECONDS)
    await crew.begun(run, "middle", worker)
    told_at = time.time()
    worker.leave()
    code = await crew.exited(worker)
    after = await run.info()

    assert after.ready_at is not None
    late = after.ready_at.timestamp() - told_at - GRACE_SECONDS
    sys.stdout.write(f"figure: claimable {late:.2f} s after {GRACE_SECONDS:g} s of grace, as {after.state}\n")
    assert (code, after.state) == (0, RunState.PENDING)
    assert 0 <= late < LIMIT_SECONDS
