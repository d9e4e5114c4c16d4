"""Audit: the facts of a run's life, in the same words on every store.

A store notes each in the transaction that makes it true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from holdfast.core.checkpoint import Checkpoint
from holdfast.core.clock import Micros
from holdfast.core.commands import Cancellation, Fork, Pause, Resume, RunControl, Wake
from holdfast.core.model import Arrival, AuditFact, Entry, EntryState, MessageToRun, Run
from holdfast.core.states import RunState

KEPT = 100
ROUTINE = ("claimed", "suspended", "woken", "parked", "heartbeat")
"""Of what happens to a run over and over, so many facts are kept: the last."""

TRIM_EVERY = 50
"""Where that costs something, the rest is cleared away only after so many more."""

KEY_REUSED = "key_reused"
"""The fact that another run has taken over the key of an ended one."""

REQUEST = "request"
"""Where a fact names the request that it goes back to: only what somebody asked for has one."""

BY = "by"
"""Where a fact names the actor who asked for it."""

BEAT = "beat"
"""Where a sign of life has its token and number."""


def kept(facts: Iterable[AuditFact]) -> tuple[AuditFact, ...]:
    """The facts without those that are too many: a store may not have cleared them away yet."""
    told = tuple(facts)
    routine = [fact for fact in told if fact.event in ROUTINE]
    old = set(map(id, routine[:-KEPT]))
    return tuple(fact for fact in told if id(fact) not in old)


def of_claim(before: Run, after: Run, now: Micros) -> AuditFact:
    """A claim, and whether it found that a worker had died."""
    data: dict[str, str | int] = {"worker": after.worker or "", "token": after.token}
    if after.crashes > before.crashes:
        data |= {"crashes": after.crashes, "lost": before.worker or ""}
    return AuditFact(run_id=after.id, event="claimed", at=now, data=data)


def of_move(before: Run, after: Run, now: Micros) -> AuditFact | None:
    """The fact of a change of state, if there was one worth telling."""
    if before.state is after.state and before.is_held == after.is_held:
        return None
    data: dict[str, str | int] = {}
    if after.error is not None:
        data["error" if after.state is not RunState.CANCELLED else "reason"] = str(after.error)[:500]
    if after.state is RunState.CANCELLED and after.error is not None:
        data["reason"] = after.error.message
    event = "released" if after.state is RunState.PENDING else after.state.value
    if after.generation > before.generation:
        event, data = "continued", {"generation": after.generation}
    return AuditFact(run_id=after.id, event=event, at=now, data=data)


def of_cancel(after: Run, why: Cancellation, now: Micros) -> AuditFact:
    """The end of a run by a cancel, or the beginning of its rollback."""
    data: dict[str, str | int] = {"reason": why.reason}
    if why.request:
        data = _asked(data, why.request, why.by)
    return AuditFact(run_id=after.id, event=after.state.value, at=now, data=data)


def of_control(run_id: str, event: str, request: RunControl, now: Micros, **data: str | int) -> AuditFact:
    """A change that a person or a program asked for. The id of the request tells a repeat from another request."""
    return AuditFact(run_id=run_id, event=event, at=now, data=_asked(data, request.id, request.by))


def _asked(data: Mapping[str, str | int], request_id: str, by: str) -> dict[str, str | int]:
    return {**data, **({BY: by} if by else {}), REQUEST: request_id}


def of_change(after: Run, request: Pause | Resume | Wake, now: Micros) -> AuditFact:
    """A run that was kept from going on, or made to."""
    match request:
        case Pause():
            event = "pausing" if after.is_pausing else "paused"
            return of_control(after.id, event, request, now, reason=request.reason)
        case Resume():
            return of_control(after.id, "resumed", request, now)
        case Wake():
            return of_control(after.id, "woken", request, now, cause="wake")
        case _:
            assert_never(request)


def of_key_reuse(run_id: str, key: str, new_run_id: str, now: Micros) -> AuditFact:
    """The key of an ended run went over to another run."""
    return AuditFact(run_id=run_id, event=KEY_REUSED, at=now, data={"key": key, "to": new_run_id})


def of_fork(source: Run, request: Fork, now: Micros) -> tuple[AuditFact, AuditFact]:
    """What is told of a run that was forked, and of the one that was made from it."""
    at = request.location
    return (
        of_control(source.id, "forked", request, now, to=request.new_run_id, location=at),
        of_control(request.new_run_id, "forked", request, now, of=source.id, location=at, patched=len(request.patch)),
    )


def of_entry(run_id: str, entry: Entry, now: Micros) -> AuditFact | None:
    """A failed attempt that will be repeated; other entries are their own record."""
    if entry.state is not EntryState.RETRYING or entry.error is None:
        return None
    data: dict[str, str | int] = {
        "location": entry.location,
        "attempt": entry.attempts,
        "error": str(entry.error)[:500],
    }
    return AuditFact(run_id=run_id, event="retried", at=now, data=data)


def of_beat(run: Run, checkpoint: Checkpoint, now: Micros) -> AuditFact | None:
    """A sign of life of a body that takes long, if a checkpoint has one.

    Token and number tell it from another one, and that it is the same if it is written twice.
    """
    if not checkpoint.beat:
        return None
    data: dict[str, str | int] = {"worker": run.worker or "", BEAT: f"{run.token}.{checkpoint.beat}"}
    return AuditFact(run_id=run.id, event="heartbeat", at=now, data=data)


def of_wake(run: Run, arrival: Arrival, by: str, now: Micros) -> AuditFact:
    """A suspended run made ready by something that reached it; `by` is who sent it, if known."""
    data: dict[str, str | int] = {"cause": arrival.kind.value, "name": arrival.name}
    if by:
        data[BY] = by
    return AuditFact(run_id=run.id, event="woken", at=now, data=data)


def of_parking(run: Run, limit: str, now: Micros) -> AuditFact:
    """A run that was due and could not begin, because of a limit of its type."""
    return AuditFact(run_id=run.id, event="parked", at=now, data={"limit": limit})


def of_drop(run_id: str, message: MessageToRun, why: str, now: Micros) -> AuditFact:
    """A message that a run sent and nobody took. Its id tells two of them from one that was written twice."""
    data: dict[str, str | int] = {"id": message.id, "name": message.name, "to": message.run_id or "", "why": why}
    return AuditFact(run_id=run_id, event="dropped", at=now, data=data)
