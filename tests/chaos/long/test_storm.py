"""A storm of a minute on each store: every invariant holds despite failures of processes and the store.

`HOLDFAST_PROCESS_SECONDS` makes it last longer, `HOLDFAST_CHAOS_SEED` repeats one.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest

from tests.chaos.display import Display
from tests.chaos.places import names
from tests.chaos.plan import Plan
from tests.chaos.session import hold
from tests.duration import lasting

SECONDS = max(40.0, float(os.environ.get("HOLDFAST_PROCESS_SECONDS", "0")))
"""Duration of the disturbances; the calm follows."""
BLOWS, RUNS = round(SECONDS / 8), round(2 * SECONDS)
"""Minimum number, so that every invariant has something to check."""


@lasting(2 * SECONDS)
@pytest.mark.parametrize("store", names())
async def test_every_invariant_holds_in_a_storm(store: str, tmp_path: Path) -> None:
    seed = os.environ.get("HOLDFAST_CHAOS_SEED") or secrets.token_hex(4)
    plan = Plan(seconds=SECONDS, seed=seed, producers=1, pause_seconds=0.9, least_blows=BLOWS, least_runs=RUNS)

    verdict = await hold(store, plan, Display(), tmp_path)

    report = "\n".join(verdict.lines())
    sys.stdout.write(report)
    assert verdict.is_good, report
    assert [check.invariant for check in verdict.checks if check.count == 0] == []
