"""Finish the programs that another process has started: `python -m tests.crash.replay FILE NOW ID…`."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime

from holdfast import Registry
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.clock import VirtualClock
from holdfast.testing.harness import Harness
from tests.crash import programs
from tests.programs.ledger import EffectLedger


async def finish(file: str, now: str, run_ids: list[str]) -> None:
    """Send each run its last message, and print each result and the executed step bodies."""
    app = Registry()
    programs.build(app, EffectLedger())
    clock = VirtualClock(datetime.fromisoformat(now))
    async with Harness(app, clock=clock, store=SqliteStore(file, clock=clock)) as h:
        for run_id in run_ids:
            await h.run(run_id).send("end")
        results = {run_id: await h.run(run_id).result() for run_id in run_ids}
        json.dump({"results": results, "executed": h.executed}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(finish(sys.argv[1], sys.argv[2], sys.argv[3:]))
