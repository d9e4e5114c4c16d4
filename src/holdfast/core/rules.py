"""Rules: pure decisions about runs, the same for every store.

A store loads values, calls these functions for the new values, and writes the result. Nothing in this file
does I/O or reads a clock; `now` is always a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, assert_never

from msgspec.structs import replace

from holdfast.core.checkpoint import (
    Block,
    Checkpoint,
    ClaimRequest,
    ContinueAsNew,
    Finish,
    Hold,
    LeaseRequest,
    Release,
    StartRollback,
    Suspend,
    UndoneState,
)
from holdfast.core.clock import SECOND, Micros
from holdfast.core.codec import same_json
from holdfast.core.commands import Cancellation, Delete
from holdfast.core.errors import ErrorRecord, KeyConflict
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Fence, Intent, MessageToRun, Run, Wait, WaitKind
from holdfast.core.states import RunState, check_move
from holdfast.core.verbs import StopRequest

SUSPECT_CRASHES = 2
CRASH_LIMIT = 3
BLOCKED_FIRST_RETRY: Micros = 5 * SECOND
BLOCKED_LAST_RETRY: Micros = 600 * SECOND

SLOT_LOCATION = "~slot"
LIMIT_LOCATION = "~limit"
MAX_RUN_LOCATION = "~max_run"
MAX_SUSPEND_LOCATION = "~max_suspend"
ROLLBACK_LOCATION = "~rollback"

CLOSING = Cancellation(reason="its parent ended")
BY_PARENT = Cancellation(reason="cancelled by its parent")
FORGOTTEN = Cancellation(reason="its parent was taken back to before it started it")
"""Cancels of children: the parent ended, its code cancelled them, or it was rewound to before their start."""


# Starting


def new_run(intent: Intent, now: Micros) -> Run:
    """Return the run that an intent creates."""
    start_at = max(now, intent.start_at or 0) + intent.delay
    return Run(
        id=intent.id,
        type=intent.type,
        state=RunState.PENDING,
        payload=intent.payload,
        created_at=now,
        start_at=start_at,
        updated_at=now,
        priority=intent.priority,
        ready_at=None if intent.is_parked else start_at,
        key=intent.key,
        tags=intent.tags,
        parent_id=intent.parent_id,
        parent_location=intent.parent_location,
        on_close=intent.on_close,
        retention=intent.retention,
        options=intent.options,
    )


def seated(intents: Iterable[Intent], taken: Callable[[Intent], int]) -> Iterator[Intent]:
    """Yield the intents to create. One with a limit is parked if that many of its siblings have a slot.

    `taken` returns the number of existing siblings that have a slot.
    """
    seats: dict[str | None, int] = {}
    for intent in intents:
        if intent.limit is None:
            yield intent
            continue
        used = seats[intent.group] if intent.group in seats else taken(intent)
        is_parked = used >= intent.limit
        seats[intent.group] = used + (not is_parked)
        yield replace(intent, is_parked=is_parked, limit=None)


def parking(run: Run) -> Wait:
    """Return the wait of a run that has no slot of its group."""
    return Wait(location=SLOT_LOCATION, kind=WaitKind.SLOT, since=run.created_at, names=(run.group or "",))


def is_parked(waits: Iterable[Wait]) -> bool:
    """True if a run waits for a slot of its group. Nothing else makes it ready."""
    return any(wait.location == SLOT_LOCATION for wait in waits)


def unparked(run: Run, now: Micros) -> Run:
    """Return the run that got its slot. A paused run continues when it is resumed."""
    if run.state is not RunState.PENDING:
        return run
    return replace(run, ready_at=max(now, run.start_at), updated_at=now)


def key_verdict(holder: Run, intent: Intent) -> Literal["free", "same", "conflict"]:
    """Compare an intent with the run that has its key: it may take the key over, is the same start, or conflicts."""
    if holder.state.is_end and (
        intent.reuse == "after_end" or (intent.reuse == "after_failure" and holder.state is not RunState.SUCCEEDED)
    ):
        return "free"
    is_same = holder.type == intent.type and same_json(holder.payload, intent.payload)
    return "same" if is_same else "conflict"


def key_conflict(key: str, run_id: str, index: int) -> KeyConflict:
    """The refusal of an intent, with the same message on every store."""
    return KeyConflict(
        f"key {key!r} already belongs to run {run_id}, which has another type or payload; "
        "use another key, or the same payload to get that run",
        run_id=run_id,
        index=index,
    )


# Claiming


def is_suspect(run: Run) -> bool:
    """True if a claim of this run would count at least the second crash."""
    return run.crashes + run.is_held >= SUSPECT_CRASHES


def claimed(run: Run, by: ClaimRequest | LeaseRequest, now: Micros) -> Run:
    """Return the run after a claim. If `worker` was still set, that worker died: the claim counts a crash."""
    is_crash = run.is_held
    # A run that was blocked during its rollback continues the rollback.
    state = RunState.RUNNING if run.rollback is None else RunState.ROLLING_BACK
    return replace(
        run,
        state=check_move(run.state, state),
        worker=by.worker,
        claim_id=by.id if isinstance(by, ClaimRequest) else by.claim_id,
        token=run.token + 1,
        ready_at=now + by.lease,
        crashes=run.crashes + is_crash,
        attempt=run.attempt + (is_crash or run.state is RunState.BLOCKED),
        first_claimed_at=now if run.first_claimed_at is None else run.first_claimed_at,
        python=run.python or by.python,
        updated_at=now,
    )


# Writing


def judge(run: Run | Fence | None, checkpoint: Checkpoint) -> Literal["apply", "applied", "lost"]:
    """Decide if a checkpoint may still be written.

    Taking a held run away raises its token. So if the token is the same and no worker holds the run, this very
    checkpoint released it before, and its answer got lost.
    """
    if run is None or run.token != checkpoint.token:
        return "lost"
    return "applied" if run.worker is None else "apply"


def _suspended_since(checkpoint: Checkpoint, now: Micros) -> Micros:
    """Return the start of a suspension: the instant from which the holder counts `max_suspend`, if it is set.

    With a later instant, the time would not be up when the deadline wakes the run, and would start again.
    """
    limits = (wait.since for wait in checkpoint.waits or () if wait.location == MAX_SUSPEND_LOCATION)
    return next(limits, now)


def supersedes(entry: Entry, recorded: Entry) -> bool:
    """True if an entry may replace the recorded one. A settled entry never changes again."""
    return not recorded.is_settled and (entry.is_settled or entry.attempts > recorded.attempts)


def advanced(run: Run, checkpoint: Checkpoint, now: Micros) -> Run:
    """Return the run after a checkpoint. Call it last, when all arrivals of the transaction are counted."""
    crashes = 0 if checkpoint.charged else run.crashes
    step = checkpoint.next
    match step:
        case Hold():
            return replace(run, crashes=crashes) if crashes != run.crashes else run
        case Suspend():
            if run.arrivals > checkpoint.seen:
                return replace(run, crashes=crashes)
            free = _release(run, RunState.SUSPENDED, now, ready_at=next_deadline(checkpoint.waits or ()))
            error = run.error if run.rollback is not None else None
            return replace(free, crashes=0, error=error, suspended_at=_suspended_since(checkpoint, now))
        case Finish():
            return replace(_ended(run, step.state, now), result=step.result, error=step.error)
        case StartRollback():
            return replace(rolling_back(run, step, now), crashes=crashes)
        case ContinueAsNew():
            return continued_as_new(run, step, now)
        case Block():
            blocked = _release(run, RunState.BLOCKED, now, ready_at=step.retry_at)
            return replace(blocked, crashes=crashes, error=step.error)
        case Release():
            return replace(_release(run, RunState.PENDING, now, ready_at=max(now, run.start_at)), crashes=crashes)
        case _:
            assert_never(step)


def rolling_back(run: Run, start: StartRollback, now: Micros) -> Run:
    """Return the run with its rollback started: its code is over, and it is ready for a worker to undo its steps."""
    marked = replace(run, rollback=start.end)
    return replace(_release(marked, RunState.ROLLING_BACK, now, ready_at=now), error=start.error)


def rollback_entry(start: StartRollback, position: int, now: Micros) -> Entry:
    """Return the entry that starts a rollback. Everything before its position is undone."""
    return Entry(
        location=ROLLBACK_LOCATION,
        kind=EntryKind.ROLLBACK,
        state=EntryState.DONE,
        position=position,
        error=start.error,
        started_at=now,
        finished_at=now,
    )


def continued_as_new(run: Run, step: ContinueAsNew, now: Micros) -> Run:
    """Return the run as its next generation, not claimed yet."""
    fresh = replace(
        run,
        generation=run.generation + 1,
        continued=step.payload,
        first_claimed_at=None,
        python=None,
        crashes=0,
        error=None,
    )
    return _release(fresh, RunState.PENDING, now, ready_at=now)


def _release(run: Run, state: RunState, now: Micros, *, ready_at: Micros | None) -> Run:
    """Return the run, released but not ended. A requested pause takes effect now and overrides `state`."""
    if run.rollback is not None and state is not RunState.BLOCKED:
        state = RunState.ROLLING_BACK
    if run.is_pausing:
        state, ready_at = RunState.PAUSED, None
    return replace(
        run,
        state=check_move(run.state, state),
        worker=None,
        claim_id=None,
        ready_at=ready_at,
        stop=None,
        updated_at=now,
    )


def _ended(run: Run, state: RunState, now: Micros) -> Run:
    return replace(
        run,
        state=check_move(run.state, state),
        worker=None,
        claim_id=None,
        ready_at=None,
        stop=None,
        rollback=None,
        crashes=0,
        updated_at=now,
        finished_at=now,
        purge_at=None if run.retention is None else now + run.retention,
    )


def next_deadline(waits: Iterable[Wait]) -> Micros | None:
    """Return the earliest deadline of the waits."""
    return min((wait.deadline for wait in waits if wait.deadline is not None), default=None)


def blocked_retry(previous: ErrorRecord | None) -> tuple[int, Micros]:
    """Return the number of the next block in a row, and the delay until the run is tried again."""
    count = previous.attempts + 1 if previous is not None else 1
    return count, min(BLOCKED_LAST_RETRY, BLOCKED_FIRST_RETRY * 2 ** min(count - 1, 16))


# Arriving


def accepts(wait: Wait, arrival: Arrival) -> bool:
    """True if an arrival matches a wait."""
    if wait.kind is WaitKind.CHILDREN:
        return arrival.kind is WaitKind.CHILD and arrival.group in wait.names
    if wait.kind is not arrival.kind:
        return False
    if wait.kind is WaitKind.EVENT and not arrival.is_exclusive and int(arrival.ref or 0) <= wait.after:
        return False
    return not wait.names or arrival.name in wait.names


def is_asleep(run: Run, now: Micros) -> bool:
    """True if an arrival may wake a run, so that its waits have to be checked.

    A run that is already ready needs no second wake-up, and registers its waits again after its claim. So when
    thousands of children end one after the other, not every end has to search thousands of waits of the parent.
    """
    return run.state is RunState.SUSPENDED and not run.is_held and not is_due(run, now)


def counted_down(waits: Sequence[Wait], arrival: Arrival) -> tuple[Sequence[Wait], bool]:
    """Return the waits after an arrival, and True if one is over. A wait for a group is over at the last end."""
    is_over = False
    after = waits
    for index, wait in enumerate(waits):
        if not accepts(wait, arrival):
            continue
        if wait.kind is WaitKind.CHILDREN and wait.count > 1:
            after = (*after[:index], replace(wait, count=wait.count - 1), *after[index + 1 :])
        else:
            is_over = True
    return after, is_over


def is_in_race(run: Run, now: Micros) -> bool:
    """True if a run is held, or could be claimed now. If not, it needs no slots."""
    return run.is_held or is_due(run, now)


def is_due(run: Run, now: Micros) -> bool:
    """True if a run may be claimed now. A held run may be claimed when its lease has expired."""
    return run.ready_at is not None and run.ready_at <= now


def delivered(run: Run, now: Micros, *, is_awaited: bool) -> Run:
    """Return the run after an arrival. Of a held run, only the count of arrivals changes."""
    run = replace(run, arrivals=run.arrivals + 1)
    if is_awaited and run.state is RunState.SUSPENDED and not run.is_held:
        return woken(run, now)
    return run


def woken(run: Run, now: Micros) -> Run:
    """Return the run, ready now, but never before its own start time. A run that is already ready keeps its place."""
    if run.ready_at is not None and run.ready_at <= now:
        return run
    return replace(run, ready_at=max(now, run.start_at), updated_at=now)


def message_arrival(message: MessageToRun, run: Run, now: Micros) -> Arrival:
    """Return a message as an arrival at its run."""
    return Arrival(
        number=run.arrivals + 1,
        kind=WaitKind.MESSAGE,
        name=message.name,
        at=now,
        payload=message.payload,
        ref=message.id,
    )


def event_arrival(number: int, topic: str, payload: str, at: Micros, *, is_exclusive: bool = False) -> Arrival:
    """Return an event as an arrival. Its number in the run's inbox is still to be set."""
    return Arrival(
        number=0,
        kind=WaitKind.EVENT,
        name=topic,
        at=at,
        payload=payload,
        ref=str(number),
        is_exclusive=is_exclusive,
    )


def child_end(child: Run, number: int, now: Micros) -> Arrival:
    """Return the end of a child as an arrival at its parent."""
    return Arrival(
        number=number,
        kind=WaitKind.CHILD,
        name=child.id,
        at=now,
        payload=child.result,
        state=child.state,
        error=child.error,
        group=child.group,
    )


# Control


def is_orphan(run: Run, *, has_waits: bool) -> bool:
    """True if nothing would ever move a run: not held, not ready at any time, not waiting for something named."""
    is_waiting = run.state in (RunState.BLOCKED, RunState.PAUSED) or has_waits
    return not (run.state.is_end or run.is_held or run.ready_at is not None or is_waiting)


def cancelled(run: Run, reason: str, now: Micros) -> Run:
    """Return the run, cancelled. The token grows, so that later writes of a holder are refused."""
    ended = replace(_ended(run, RunState.CANCELLED, now), token=run.token + 1)
    return replace(ended, error=cancellation(reason))


def deletion(request: Delete) -> Cancellation:
    """Return the cancellation of a live run that is deleted."""
    return Cancellation(reason="deleted", force=True, request=request.id, by=request.by)


def cancellation(reason: str) -> ErrorRecord:
    """Return the error record of a cancel. It has no `types`, unlike an exception of that name."""
    return ErrorRecord(type="Cancelled", message=reason)


def is_cancellation(error: ErrorRecord) -> bool:
    """True if an error is the record of a cancel."""
    return error.type == "Cancelled" and not error.types


def is_cancelled_as(child: Run, cancel: Cancellation) -> bool:
    """True if a child was cancelled for exactly this reason. It may still be rolling back."""
    is_cancelled = child.state is RunState.CANCELLED or child.rollback is RunState.CANCELLED
    return is_cancelled and child.error == cancellation(cancel.reason)


def given_up(run: Run, now: Micros) -> Run:
    """Return a blocked run, failed with the error that blocked it."""
    return replace(_ended(run, RunState.FAILED, now), token=run.token + 1)


def undone_first(run: Run, end: UndoneState, error: ErrorRecord, now: Micros) -> tuple[Run, StartRollback]:
    """Return the run with the rollback that precedes its end, and the start of it. A holder is fenced off."""
    start = StartRollback(end=end, error=error)
    freed = replace(run, token=run.token + 1, stop=None)
    return rolling_back(freed, start, now), start


def paused(run: Run, _waits: Iterable[Wait], now: Micros) -> Run | None:
    """Return the run, paused, or marked for its holder to pause; None if nothing changes."""
    if run.state.is_end or run.state is RunState.PAUSED or run.is_pausing:
        return None
    stop = StopRequest.PAUSE if run.stop is None else StopRequest.EVICT_THEN_PAUSE
    asked = replace(run, stop=stop, updated_at=now)
    return asked if run.is_held else _release(asked, RunState.PAUSED, now, ready_at=None)


def resumed(run: Run, waits: Iterable[Wait], now: Micros) -> Run | None:
    """Return the run, resumed; None if it was not paused."""
    if run.is_pausing:
        stop = StopRequest.EVICT if run.stop is StopRequest.EVICT_THEN_PAUSE else None
        return replace(run, stop=stop, updated_at=now)
    if run.state is not RunState.PAUSED:
        return None
    ready_at = None if is_parked(waits) else max(now, run.start_at)
    # Paused time does not count towards max_suspend.
    return replace(_release(run, RunState.PENDING, now, ready_at=ready_at), suspended_at=None)


def evicted(run: Run, _waits: Iterable[Wait], now: Micros) -> Run | None:
    """Return the run, marked for its holder to release it at once; None if no worker holds it, or it is marked."""
    if not run.is_held or run.stop in (StopRequest.EVICT, StopRequest.EVICT_THEN_PAUSE):
        return None
    stop = StopRequest.EVICT if run.stop is None else StopRequest.EVICT_THEN_PAUSE
    return replace(run, stop=stop, updated_at=now)


def roused(run: Run, waits: Iterable[Wait], now: Micros) -> Run | None:
    """Return the run, made ready by a `Wake`; None if it is held, ready, or must not continue by itself.

    Also None if a limit has parked it: it is awake, and would only be parked again.
    """
    if any(wait.location == LIMIT_LOCATION for wait in waits):
        return None
    may_go_on = run.state is RunState.SUSPENDED or run.ready_at is not None
    if run.is_held or run.state.is_end or not may_go_on:
        return None
    after = woken(run, now)
    return None if after is run or after.ready_at == run.ready_at else after


def reopened(run: Run, now: Micros, *, parent_location: str | None, is_from_start: bool = False) -> Run:
    """Return the run, ready to continue from a changed history. A holder is fenced off.

    `parent_location` is its location in its parent's history, if any. `max_run` counts from now. `is_from_start`: the
    time that its code sees starts again too.
    """
    start_at = max(now, run.start_at)
    free = replace(
        run,
        token=run.token + 1,
        rollback=None,
        stop=None,
        crashes=0,
        result=None,
        error=None,
        finished_at=None,
        purge_at=None,
        suspended_at=None,
        start_at=start_at,
        first_claimed_at=None if is_from_start else run.first_claimed_at,
        python=None if is_from_start else run.python,
        attempt=run.attempt + 1,
        parent_location=parent_location,
    )
    return _release(free, RunState.PENDING, now, ready_at=start_at)


def undoing_again(run: Run, now: Micros) -> Run:
    """Return a run that was blocked during its rollback, ready to continue it."""
    freed = replace(run, token=run.token + 1, crashes=0, attempt=run.attempt + 1)
    return _release(freed, RunState.ROLLING_BACK, now, ready_at=now)


# Parents and their children


def knows(recorded: Entry | None, child: Run) -> bool:
    """True if a parent has this child in its history. `recorded` is the entry at the child's `parent_location`.

    A parent may have dropped the entry, or have another child there. It then counts this run neither as a child nor for
    its slots.
    """
    return recorded is not None and recorded.kind is EntryKind.CHILD and recorded.ref == child.id


def is_child(run: Run) -> bool:
    """True if the end of a run concerns its parent, or the parent's end the run. A `parent_id` alone is lineage."""
    return run.parent_id is not None and (run.parent_location is not None or run.on_close == "cancel")


def is_reopened(child: Run) -> bool:
    """True if a child may have reported an end to its parent before. If not, its parent need not be checked."""
    return child.attempt > 1


def waits_for(recorded: Entry | None, child: Run, *, has_unread_end: bool) -> bool:
    """True if a parent still needs the end of a child. The first end that reached it stands."""
    is_open = recorded is not None and not recorded.is_settled
    return is_open and knows(recorded, child) and not has_unread_end


def is_kept_for_parent(recorded: Entry | None, child: Run) -> bool:
    """True if an ended child must not be pruned before its parent: it did not succeed, and its parent awaits it.

    Recovering the parent may reopen the child. The entry of a child counts an attempt once the code awaits its end.
    """
    is_awaited = recorded is not None and knows(recorded, child) and recorded.attempts > 0
    return is_awaited and child.state is not RunState.SUCCEEDED and child.deleted_at is None


def reseated(run: Run, taken: int) -> tuple[Run, tuple[Wait, ...]]:
    """Return a reopened child and its waits. In a `map` with a limit it is parked if its siblings use all slots."""
    limit = run.options.map_limit
    if limit is None or run.group is None or taken < limit:
        return run, ()
    return replace(run, ready_at=None), (parking(run),)
