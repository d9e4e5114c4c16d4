"""A standstill: the instructions of a turn to its driver when its code can go no further."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.checkpoint import Block, ContinueAsNew, Finish, StartRollback
from holdfast.core.clock import Micros
from holdfast.runner.operation import StepCall

TurnEnd = Finish | StartRollback | ContinueAsNew | Block
"""The end of a turn whose code has ended or cannot continue."""


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions of a turn to its driver, as of the instant `at`.

    The driver executes the steps in `start` and calls `started` for each. It drops the bodies at the locations in
    `abandon`. If there is an `end`, it writes a checkpoint with it. Otherwise it may suspend the run if `may_suspend`,
    and it writes a checkpoint and continues if `must_write`. It calls `settle` at `wake_at`.
    `child_count` is the number of single children that the run waits for.
    """

    at: Micros
    start: Sequence[StepCall] = ()
    abandon: Sequence[str] = ()
    end: TurnEnd | None = None
    may_suspend: bool = False
    must_write: bool = False
    wake_at: Micros | None = None
    child_count: int = 0
