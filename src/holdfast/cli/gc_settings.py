"""Garbage collection and thread switch settings for a process that only executes runs."""

from __future__ import annotations

import gc
import sys

_SWITCH_SECONDS = 0.0005
_GC_THRESHOLDS = (20_000, 20, 20)


def tune_for_runs() -> None:
    """Tune the interpreter for many runs at once on the event loop, with steps in threads beside it."""
    # Steps in threads would otherwise starve beside a busy event loop.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Hundreds of runs create many short-lived objects; with the default, a collection would start every 700 of them.
    gc.set_threshold(*_GC_THRESHOLDS)
