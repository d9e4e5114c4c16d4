"""A checkpoint: one atomic write of everything a turn gained, and the answer of the store.

`next` says what happens to the run: it stays held, suspends, ends, starts a rollback, continues as new (its next
generation), blocks, or is released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.core.claim_order import Shares
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Arrival, Entry, Event, Intent, Lease, MessageToRun, Reply, Value, Wait
from holdfast.core.states import RunState
from holdfast.core.verbs import StopRequest
from holdfast.core.wire import Tagged

if TYPE_CHECKING:
    EndState = Literal[RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED]
    UndoneState = Literal[RunState.FAILED, RunState.CANCELLED]
else:  # msgspec decodes no literals of an enum; `__post_init__` refuses the other states
    EndState = UndoneState = RunState

_ENDS = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


class Hold(Tagged, frozen=True, kw_only=True):
    """The holder keeps the run and continues."""


class Suspend(Tagged, frozen=True, kw_only=True):
    """The run can only wait. Takes effect only if no arrival is newer than the checkpoint's `seen`."""


class Finish(Tagged, frozen=True, kw_only=True):
    """The one end of the run."""

    state: EndState
    result: str | None = None
    error: ErrorRecord | None = None

    def __post_init__(self) -> None:
        if self.state not in _ENDS:  # a tuple compares by identity first, which is faster than the hash of an enum
            raise ValueError(f"a run cannot end as {self.state}; the ends are {', '.join(_ENDS)}")


class StartRollback(Tagged, frozen=True, kw_only=True):
    """The workflow code is over. The run undoes its steps, then ends as `end` because of `error`."""

    end: UndoneState
    error: ErrorRecord

    def __post_init__(self) -> None:
        if self.end not in _ENDS[1:]:
            raise ValueError(f"a rollback cannot end as {self.end}; it ends as {' or '.join(_ENDS[1:])}")


class ContinueAsNew(Tagged, frozen=True, kw_only=True):
    """The run starts its next generation with this payload. Its history is dropped."""

    payload: str


class Block(Tagged, frozen=True, kw_only=True):
    """The run cannot continue. It is tried again at `retry_at`; if that is None, only after a recover."""

    error: ErrorRecord
    retry_at: Micros | None = None


class Release(Tagged, frozen=True, kw_only=True):
    """The holder shuts down and gives the run back immediately."""


Next = Hold | Suspend | Finish | StartRollback | ContinueAsNew | Block | Release


class Checkpoint(Value, frozen=True, kw_only=True):
    """Everything one run gained since its last checkpoint. Written whole under a current token, or not at all.

    `waits` is the full set of open waits, or None if it did not change. `consumed` are the numbers of the arrivals
    that the entries used up. `pruned` are scopes whose entries are removed, except those that undo needs. `forgotten`
    also removes the settled entries for people (`location.is_for_people`) whose position is below it. `charged`
    means that the crashes counted on the run are now in the attempts of its steps. `beat` numbers the heartbeats
    under this token, from 1; 0 means no heartbeat.
    """

    run_id: str
    token: int
    seen: int
    next: Next
    entries: tuple[Entry, ...] = ()
    consumed: tuple[int, ...] = ()
    waits: tuple[Wait, ...] | None = None
    children: tuple[Intent, ...] = ()
    messages: tuple[MessageToRun, ...] = ()
    events: tuple[Event, ...] = ()
    cancels: tuple[str, ...] = ()
    replies: tuple[Reply, ...] = ()
    pruned: tuple[str, ...] = ()
    forgotten: int = 0
    values: dict[str, str] = {}
    beat: int = 0
    charged: bool = False


class Verdict(Value, frozen=True, kw_only=True):
    """A store's answer about one run: if it is still held, and the arrivals that the holder has not seen.

    `seen` is the number of the last arrival, which may have moved on to another run since. `stop` is how the holder is
    asked to release the run. `state` is the new state if this write, or an earlier attempt at it, ended the lease.
    """

    run_id: str
    is_lost: bool = False
    is_held: bool = True
    stop: StopRequest | None = None
    arrivals: tuple[Arrival, ...] = ()
    seen: int = 0
    state: RunState | None = None


class Verdicts(Value, frozen=True, kw_only=True):
    """The answer to a batch: one verdict per run, in order, and the store's time."""

    verdicts: tuple[Verdict, ...]
    now: Micros


class ClaimRequest(Value, frozen=True, kw_only=True):
    """A worker's request for runs. A repeated claim with the same `id` returns the same leases.

    `types` are exact names. A run that has crashed twice is a suspect. A worker gets one only if it holds no other
    suspect (`may_suspect`). `shares` are the worker's counts so far, so that no rank of runs starves.
    """

    id: str
    worker: str
    types: tuple[str, ...]
    limit: int
    lease: Micros
    python: str
    may_suspect: bool = True
    is_repeat: bool = False
    shares: Shares = Shares()


class Claimed(Value, frozen=True, kw_only=True):
    """The leases a claim won, and when the next run of these types becomes ready (None: unknown).

    `has_more`: more runs may be ready now or in a moment, so the worker should claim again at once.
    """

    leases: tuple[Lease, ...]
    next_ready_at: Micros | None
    now: Micros
    has_more: bool = False


class LeaseRequest(Value, frozen=True, kw_only=True):
    """A request to lease a created run in the same commit, if it is ready at once."""

    worker: str
    claim_id: str
    lease: Micros
    python: str


class CreatedRun(Value, frozen=True, kw_only=True):
    """The answer to one intent. `lease` is set if the run was leased to its creator."""

    run_id: str
    created: bool
    lease: Lease | None = None


class Created(Value, frozen=True, kw_only=True):
    """The answer to a batch of intents, in order."""

    runs: tuple[CreatedRun, ...]
    now: Micros
