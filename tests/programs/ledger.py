"""The ledger: the actual executions of step bodies, for comparison with the expected ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast import Fatal, step_info


class EffectLedger:
    """The actual executions of step bodies: their number and order."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, str]] = Counter()
        self.log: list[tuple[str, str, Any]] = []

    def note(self, value: Any = None) -> Any:
        """Record a body, or the start of one."""
        info = step_info()
        self.begun[info.run_id, info.location] += 1
        self.log.append((info.run_id, info.location, value))
        return value

    def flaky(self) -> int:
        """A body that succeeds at the third attempt."""
        self.note()
        if step_info().attempt < 3:
            raise OSError("busy")
        return 7

    def hopeless(self) -> None:
        """A body that always fails."""
        self.note()
        raise Fatal("never")
