"""A checkpoint: one atomic write of everything a turn gained, and what a store answers.

`next` says what becomes of the run: it stays held, is suspended, ends, starts to roll back, begins
anew as its next generation, is blocked, or is released.
"""

from __future__ import annotations

from typing import Literal

from holdfast.core.claim_order import Shares
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Arrival, Entry, Event, Intent, Lease, MessageToRun, Reply, Value, Wait
from holdfast.core.states import RunState


class Hold(Value, frozen=True, kw_only=True, tag=True):
    """The holder goes on."""


class Suspend(Value, frozen=True, kw_only=True, tag=True):
    """Nothing left but to wait; takes effect only if no arrival is newer than the checkpoint's `seen`."""


class Finish(Value, frozen=True, kw_only=True, tag=True):
    """The one end of the run."""

    state: Literal[RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED]
    result: str | None = None
    error: ErrorRecord | None = None


class StartRollback(Value, frozen=True, kw_only=True, tag=True):
    """The code is over; what it did is undone before the run ends as `end`, because of `error`."""

    end: Literal[RunState.FAILED, RunState.CANCELLED]
    error: ErrorRecord


class ContinueAsNew(Value, frozen=True, kw_only=True, tag=True):
    """The run begins anew with this payload, as its next generation; its history is dropped."""

    payload: str


class Block(Value, frozen=True, kw_only=True, tag=True):
    """The run cannot go on by itself; it is tried again at `retry_at`, or only after somebody recovers it."""

    error: ErrorRecord
    retry_at: Micros | None = None


class Release(Value, frozen=True, kw_only=True, tag=True):
    """The holder shuts down and gives the run back at once."""


Next = Hold | Suspend | Finish | StartRollback | ContinueAsNew | Block | Release


class Checkpoint(Value, frozen=True, kw_only=True):
    """What one run gained since its last checkpoint. Written whole under a current token, or not at all.

    `waits` is the full set of open waits, or None if it did not change. `consumed` are the numbers of the
    arrivals that its entries used up. `pruned` are scopes whose entries go, but for what undo needs. `charged` says
    that the crashes counted on the run are now in the attempts of its steps. `beat` counts, from 1 on, the signs of
    life that were noted under this token; 0 if there is none to note.
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
    values: dict[str, str] = {}
    beat: int = 0
    charged: bool = False


class Verdict(Value, frozen=True, kw_only=True):
    """A store's answer about one run: whether it is still held, and what arrived that the holder has not seen.

    `seen` is the number of the last arrival there was, which may be one that went on to another run since.
    `is_pausing`: somebody wants the run to pause, so the holder lets go of it at the next standstill. `state` is
    that of a run which this write, or an earlier attempt at it, let go.
    """

    run_id: str
    is_lost: bool = False
    is_held: bool = True
    is_pausing: bool = False
    arrivals: tuple[Arrival, ...] = ()
    seen: int = 0
    state: RunState | None = None


class Verdicts(Value, frozen=True, kw_only=True):
    """The answer to a batch: one verdict per run, in order, and the store's time."""

    verdicts: tuple[Verdict, ...]
    now: Micros


class ClaimRequest(Value, frozen=True, kw_only=True):
    """A worker's wish for work. `id` makes a repeated claim give the same leases.

    `types` are exact names. A run that has crashed twice is a suspect, given only to a worker that holds
    no other: `may_suspect`. `shares` is what the worker has counted so far, so that no rank of runs starves.
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
    """The leases a claim won, and when the next run of these types becomes ready (None: not in sight).

    `has_more`: something is under way that may make runs ready, so it is worth asking again at once.
    """

    leases: tuple[Lease, ...]
    next_ready_at: Micros | None
    now: Micros
    has_more: bool = False


class LeaseRequest(Value, frozen=True, kw_only=True):
    """Asks that a created run, if it is ready at once, be leased in the same commit."""

    worker: str
    claim_id: str
    lease: Micros
    python: str


class CreatedRun(Value, frozen=True, kw_only=True):
    """What became of one intent. `lease` is set if the run was leased to its creator."""

    run_id: str
    created: bool
    lease: Lease | None = None


class Created(Value, frozen=True, kw_only=True):
    """The answer to a batch of intents, in order."""

    runs: tuple[CreatedRun, ...]
    now: Micros
