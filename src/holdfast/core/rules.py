"""What follows from what: pure decisions that every store makes in the same way.

A store loads values, asks here what becomes of them, and writes the answer. Nothing in this file
does I/O or reads a clock; `now` always comes in.
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
)
from holdfast.core.clock import SECOND, Micros
from holdfast.core.codec import same_json
from holdfast.core.commands import Cancellation, Delete
from holdfast.core.errors import ErrorRecord, KeyConflict
from holdfast.core.model import Arrival, Entry, EntryKind, EntryState, Fence, Intent, MessageToRun, Run, Wait, WaitKind
from holdfast.core.states import RunState, check_move

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
"""Cancels of children: because their parent ended, because its code says so, because it knows of them no more."""


# Starting


def new_run(intent: Intent, now: Micros) -> Run:
    """The run an intent becomes."""
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
    """Intents as they are to be made: one with a limit is parked if so many of its siblings have a slot.

    `taken` tells how many of the siblings that exist have one.
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
    """What a run waits for that was created without a slot of its group."""
    return Wait(location=SLOT_LOCATION, kind=WaitKind.SLOT, since=run.created_at, names=(run.group or "",))


def is_parked(waits: Iterable[Wait]) -> bool:
    """Whether a run waits for a slot of its group, so that nothing else makes it ready."""
    return any(wait.location == SLOT_LOCATION for wait in waits)


def unparked(run: Run, now: Micros) -> Run:
    """The run that got its slot. One that is paused goes on when it is resumed."""
    if run.state is not RunState.PENDING:
        return run
    return replace(run, ready_at=max(now, run.start_at), updated_at=now)


def key_verdict(holder: Run, intent: Intent) -> Literal["free", "same", "conflict"]:
    """What an intent finds whose key a run already holds: a key it may take over, itself, or a stranger."""
    if holder.state.is_end and (
        intent.reuse == "after_end" or (intent.reuse == "after_failure" and holder.state is not RunState.SUCCEEDED)
    ):
        return "free"
    is_same = holder.type == intent.type and same_json(holder.payload, intent.payload)
    return "same" if is_same else "conflict"


def key_conflict(key: str, run_id: str, index: int) -> KeyConflict:
    """The refusal of an intent, in the same words on every store."""
    return KeyConflict(
        f"key {key!r} already belongs to run {run_id}, which has another type or payload; "
        "use another key, or the same payload to get that run",
        run_id=run_id,
        index=index,
    )


# Claiming


def is_suspect(run: Run) -> bool:
    """Whether a claim of this run would find it to have crashed at least twice."""
    return run.crashes + run.is_held >= SUSPECT_CRASHES


def claimed(run: Run, by: ClaimRequest | LeaseRequest, now: Micros) -> Run:
    """The run as its new holder has it. Finding a worker on it means that worker died with it."""
    is_crash = run.is_held
    # A run that was blocked while it undid what it had done goes on undoing.
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
    """Whether a checkpoint still has the right to be written.

    Whoever takes a held run away also raises its token; so a run under the same token that nobody holds
    was let go by this very checkpoint, whose answer got lost.
    """
    if run is None or run.token != checkpoint.token:
        return "lost"
    return "applied" if run.worker is None else "apply"


def _suspended_since(checkpoint: Checkpoint, now: Micros) -> Micros:
    """Since when a run is suspended: from when on its holder counts `max_suspend`, if it has one.

    Counted from another instant, its time would not be up yet when it is woken because of it, and begin anew.
    """
    limits = (wait.since for wait in checkpoint.waits or () if wait.location == MAX_SUSPEND_LOCATION)
    return next(limits, now)


def supersedes(entry: Entry, recorded: Entry) -> bool:
    """Whether an entry may replace what stands at its location: a settled one never changes again."""
    return not recorded.is_settled and (entry.is_settled or entry.attempts > recorded.attempts)


def advanced(run: Run, checkpoint: Checkpoint, now: Micros) -> Run:
    """The run after a checkpoint. To be called last, when all arrivals of the transaction are counted."""
    crashes = 0 if checkpoint.charged else run.crashes
    step = checkpoint.next
    match step:
        case Hold():
            return replace(run, crashes=crashes) if crashes != run.crashes else run
        case Suspend():
            if run.arrivals > checkpoint.seen:
                return replace(run, crashes=crashes)
            free = _let_go(run, RunState.SUSPENDED, now, ready_at=next_deadline(checkpoint.waits or ()))
            error = run.error if run.rollback is not None else None
            return replace(free, crashes=0, error=error, suspended_at=_suspended_since(checkpoint, now))
        case Finish():
            return replace(_ended(run, step.state, now), result=step.result, error=step.error)
        case StartRollback():
            return replace(rolling_back(run, step, now), crashes=crashes)
        case ContinueAsNew():
            return continued_as_new(run, step, now)
        case Block():
            blocked = _let_go(run, RunState.BLOCKED, now, ready_at=step.retry_at)
            return replace(blocked, crashes=crashes, error=step.error)
        case Release():
            return replace(_let_go(run, RunState.PENDING, now, ready_at=max(now, run.start_at)), crashes=crashes)
        case _:
            assert_never(step)


def rolling_back(run: Run, start: StartRollback, now: Micros) -> Run:
    """The run whose code is over and which is to undo what it did, as soon as a worker takes it."""
    marked = replace(run, rollback=start.end)
    return replace(_let_go(marked, RunState.ROLLING_BACK, now, ready_at=now), error=start.error)


def rollback_entry(start: StartRollback, position: int, now: Micros) -> Entry:
    """The record of the start of a rollback: everything before its position is undone."""
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
    """The run as its next generation, which nobody has claimed yet."""
    fresh = replace(
        run,
        generation=run.generation + 1,
        continued=step.payload,
        first_claimed_at=None,
        python=None,
        crashes=0,
        error=None,
    )
    return _let_go(fresh, RunState.PENDING, now, ready_at=now)


def _let_go(run: Run, state: RunState, now: Micros, *, ready_at: Micros | None) -> Run:
    """The run, no longer held and not ended. One that is to pause does so now, whatever else it would have done."""
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
        is_pausing=False,
        updated_at=now,
    )


def _ended(run: Run, state: RunState, now: Micros) -> Run:
    return replace(
        run,
        state=check_move(run.state, state),
        worker=None,
        claim_id=None,
        ready_at=None,
        is_pausing=False,
        rollback=None,
        crashes=0,
        updated_at=now,
        finished_at=now,
        purge_at=None if run.retention is None else now + run.retention,
    )


def next_deadline(waits: Iterable[Wait]) -> Micros | None:
    """The earliest instant at which one of the waits ends by itself."""
    return min((wait.deadline for wait in waits if wait.deadline is not None), default=None)


def blocked_retry(previous: ErrorRecord | None) -> tuple[int, Micros]:
    """The number of the next block in a row, and how long until the run is tried again."""
    count = previous.attempts + 1 if previous is not None else 1
    return count, min(BLOCKED_LAST_RETRY, BLOCKED_FIRST_RETRY * 2 ** min(count - 1, 16))


# Arriving


def accepts(wait: Wait, arrival: Arrival) -> bool:
    """Whether an arrival is what a wait waits for."""
    if wait.kind is WaitKind.CHILDREN:
        return arrival.kind is WaitKind.CHILD and arrival.group in wait.names
    if wait.kind is not arrival.kind:
        return False
    if wait.kind is WaitKind.EVENT and not arrival.is_exclusive and int(arrival.ref or 0) <= wait.after:
        return False
    return not wait.names or arrival.name in wait.names


def is_asleep(run: Run, now: Micros) -> bool:
    """Whether an arrival may wake a run, so that its waits have to be looked at.

    A run that is ready already needs no second wake-up, and tells anew what it waits for once it was claimed. So when
    thousands of children end one after the other, not each of them goes through thousands of waits of their parent.
    """
    return run.state is RunState.SUSPENDED and not run.is_held and not is_due(run, now)


def counted_down(waits: Sequence[Wait], arrival: Arrival) -> tuple[Sequence[Wait], bool]:
    """The waits after an arrival, and whether one of them is over. Those for a group are, when it was the last."""
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
    """Whether a run is worked on, or could be by whoever claims next; if not, it needs no slots."""
    return run.is_held or is_due(run, now)


def is_due(run: Run, now: Micros) -> bool:
    """Whether the instant has come from which a run may be claimed; for a held one, the end of its lease."""
    return run.ready_at is not None and run.ready_at <= now


def delivered(run: Run, now: Micros, *, is_awaited: bool) -> Run:
    """The run after something reached it. A held run is never touched but for the count of arrivals."""
    run = replace(run, arrivals=run.arrivals + 1)
    if is_awaited and run.state is RunState.SUSPENDED and not run.is_held:
        return woken(run, now)
    return run


def woken(run: Run, now: Micros) -> Run:
    """The run, ready now, but never before its own start time. One that is ready already keeps its place."""
    if run.ready_at is not None and run.ready_at <= now:
        return run
    return replace(run, ready_at=max(now, run.start_at), updated_at=now)


def message_arrival(message: MessageToRun, run: Run, now: Micros) -> Arrival:
    """A message as the run it is addressed to gets it."""
    return Arrival(
        number=run.arrivals + 1,
        kind=WaitKind.MESSAGE,
        name=message.name,
        at=now,
        payload=message.payload,
        ref=message.id,
    )


def event_arrival(number: int, topic: str, payload: str, at: Micros, *, is_exclusive: bool = False) -> Arrival:
    """The event of this number as a run gets it, but for the number it has in that run's inbox."""
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
    """The end of a child as its parent gets it."""
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
    """Whether nothing would ever move a run: not held, not ready at any time, not waiting for something named."""
    is_waiting = run.state in (RunState.BLOCKED, RunState.PAUSED) or has_waits
    return not (run.state.is_end or run.is_held or run.ready_at is not None or is_waiting)


def cancelled(run: Run, reason: str, now: Micros) -> Run:
    """The run, ended. The token grows, so that a holder's later writes are refused."""
    ended = replace(_ended(run, RunState.CANCELLED, now), token=run.token + 1)
    return replace(ended, error=cancellation(reason))


def deletion(request: Delete) -> Cancellation:
    """How a run ends that is deleted while it lives."""
    return Cancellation(reason="deleted", force=True, request=request.id, by=request.by)


def cancellation(reason: str) -> ErrorRecord:
    """The record of a cancel; it has no classes, unlike an error of that name."""
    return ErrorRecord(type="Cancelled", message=reason)


def is_cancellation(error: ErrorRecord) -> bool:
    """Whether an error is the record of a cancel."""
    return error.type == "Cancelled" and not error.types


def is_cancelled_as(child: Run, cancel: Cancellation) -> bool:
    """Whether a child was cancelled for this reason and for no other; it may still have to undo what it did."""
    is_cancelled = child.state is RunState.CANCELLED or child.rollback is RunState.CANCELLED
    return is_cancelled and child.error == cancellation(cancel.reason)


def cancel_by_undoing(run: Run, reason: str, now: Micros) -> tuple[Run, StartRollback]:
    """The run that has something to undo before it is cancelled. A holder is fenced off."""
    start = StartRollback(end=RunState.CANCELLED, error=cancellation(reason))
    freed = replace(run, token=run.token + 1, is_pausing=False)
    return rolling_back(freed, start, now), start


def paused(run: Run, now: Micros) -> Run | None:
    """The run, paused, or to be paused by its holder; None if there is nothing to change."""
    if run.state.is_end or run.state is RunState.PAUSED or run.is_pausing:
        return None
    asked = replace(run, is_pausing=True, updated_at=now)
    return asked if run.is_held else _let_go(asked, RunState.PAUSED, now, ready_at=None)


def resumed(run: Run, waits: Iterable[Wait], now: Micros) -> Run | None:
    """The run, ready to go on; None if it was not paused."""
    if run.is_pausing:
        return replace(run, is_pausing=False, updated_at=now)
    if run.state is not RunState.PAUSED:
        return None
    ready_at = None if is_parked(waits) else max(now, run.start_at)
    # The time it was paused is none that it was suspended.
    return replace(_let_go(run, RunState.PENDING, now, ready_at=ready_at), suspended_at=None)


def roused(run: Run, waits: Iterable[Wait], now: Micros) -> Run | None:
    """The run, made ready because a person wishes it; None if it is held, ready, or must not go on by itself.

    Nor if it is parked by a limit: it is awake, and would only be parked again.
    """
    if any(wait.location == LIMIT_LOCATION for wait in waits):
        return None
    may_go_on = run.state is RunState.SUSPENDED or run.ready_at is not None
    if run.is_held or run.state.is_end or not may_go_on:
        return None
    after = woken(run, now)
    return None if after is run or after.ready_at == run.ready_at else after


def reopened(run: Run, now: Micros, *, parent_location: str | None, is_from_start: bool = False) -> Run:
    """The run, ready to go on from a history that was changed. Whoever held it is fenced off.

    `parent_location` is where its parent knows it, if it does. Its time, `max_run`, begins anew; `is_from_start`: so
    does what its code takes for the time.
    """
    start_at = max(now, run.start_at)
    free = replace(
        run,
        token=run.token + 1,
        rollback=None,
        is_pausing=False,
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
    return _let_go(free, RunState.PENDING, now, ready_at=start_at)


def undoing_again(run: Run, now: Micros) -> Run:
    """The run, blocked while it undid what it had done, ready to go on with that."""
    freed = replace(run, token=run.token + 1, crashes=0, attempt=run.attempt + 1)
    return _let_go(freed, RunState.ROLLING_BACK, now, ready_at=now)
