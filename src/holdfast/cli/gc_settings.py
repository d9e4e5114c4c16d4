"""Settings of garbage collection and thread switches for a process that only executes runs."""

from __future__ import annotations

import gc
import sys

_SWITCH_SECONDS = 0.0005
_GC_THRESHOLDS = (20_000, 20, 20)


def tune_for_runs() -> None:
    """Let many runs at once go fast, and steps in threads beside them."""
    # Steps in threads would otherwise starve beside a busy event loop.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Hundreds of runs at once make many short-lived objects; the default would look for garbage every 700 of them.
    gc.set_threshold(*_GC_THRESHOLDS)
