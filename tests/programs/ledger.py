"""The ledger: what the bodies of steps have really done, for holding it against what they should have."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast import Fatal, step_info


class EffectLedger:
    """What step bodies have really done: how often each of them was begun, and in which order."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, str]] = Counter()
        self.log: list[tuple[str, str, Any]] = []

    def note(self, value: Any = None) -> Any:
        """A body, or the beginning of one."""
        info = step_info()
        self.begun[info.run_id, info.location] += 1
        self.log.append((info.run_id, info.location, value))
        return value

    def flaky(self) -> int:
        """A body that works at the third attempt."""
        self.note()
        if step_info().attempt < 3:
            raise OSError("busy")
        return 7

    def hopeless(self) -> None:
        """A body that never works."""
        self.note()
        raise Fatal("never")
