"""Audit facts: the events of a run's life, with the same names on every store.

A store writes each fact in the transaction that makes it true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.checkpoint import Checkpoint
from holdfast.core.clock import Micros
from holdfast.core.commands import Cancellation, Control, Fork
from holdfast.core.model import Arrival, AuditFact, Entry, EntryState, MessageToRun, Run
from holdfast.core.states import RunState
from holdfast.core.verbs import Verb

KEPT = 100
"""Maximum number of routine facts kept per run: the newest ones."""

ROUTINE = ("claimed", "suspended", "woken", "parked", "heartbeat")
"""Events that happen to a run again and again."""

TRIM_EVERY = 50
"""Number of routine facts between two trims, in stores where a trim is expensive."""

KEY_REUSED = "key_reused"
"""The event that another run took over the key of an ended run."""

REQUEST = "request"
"""The data key that holds the id of the request. Only facts with a requester have one."""

BY = "by"
"""The data key that holds the actor who asked."""

BEAT = "beat"
"""The data key that holds the token and number of a heartbeat."""


def kept(facts: Iterable[AuditFact]) -> tuple[AuditFact, ...]:
    """Return the facts without surplus routine facts, which a store may not have trimmed yet."""
    every = tuple(facts)
    routine = [fact for fact in every if fact.event in ROUTINE]
    old = set(map(id, routine[:-KEPT]))
    return tuple(fact for fact in every if id(fact) not in old)


def of_claim(before: Run, after: Run, now: Micros) -> AuditFact:
    """The fact of a claim. It names the lost worker if the claim counted a crash."""
    data: dict[str, str | int] = {"worker": after.worker or "", "token": after.token}
    if after.crashes > before.crashes:
        data |= {"crashes": after.crashes, "lost": before.worker or ""}
    return AuditFact(run_id=after.id, event="claimed", at=now, data=data)


def of_move(before: Run, after: Run, now: Micros) -> AuditFact | None:
    """The fact of a change of state. None if neither the state nor the holding changed."""
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
    """The fact that a cancel ended a run or started its rollback."""
    data: dict[str, str | int] = {"reason": why.reason}
    if why.request:
        data = _asked(data, why.request, why.by)
    return AuditFact(run_id=after.id, event=after.state.value, at=now, data=data)


def of_control(run_id: str, event: str, request: Control[Any], now: Micros, **data: str | int) -> AuditFact:
    """The fact of a change that a person or program asked for. The request id identifies a repeated request."""
    return AuditFact(run_id=run_id, event=event, at=now, data=_asked(data, request.id, request.by))


def _asked(data: Mapping[str, str | int], request_id: str, by: str) -> dict[str, str | int]:
    return {**data, **({BY: by} if by else {}), REQUEST: request_id}


def of_change(after: Run, request: Control[Any], verb: Verb, now: Micros) -> AuditFact:
    """The fact that a run was changed on request, or that its holder is asked to change it."""
    event = verb.asking if verb.asking and after.is_held else verb.event
    said = {name: value for name in verb.parameters if isinstance(value := getattr(request, name), str)}
    return of_control(after.id, event, request, now, **verb.details, **said)


def of_key_reuse(run_id: str, key: str, new_run_id: str, now: Micros) -> AuditFact:
    """The fact that another run took over the key of an ended run."""
    return AuditFact(run_id=run_id, event=KEY_REUSED, at=now, data={"key": key, "to": new_run_id})


def of_fork(source: Run, request: Fork, now: Micros) -> tuple[AuditFact, AuditFact]:
    """The facts of a fork: one for the source run, one for the new run."""
    at = request.location
    return (
        of_control(source.id, "forked", request, now, to=request.new_run_id, location=at),
        of_control(request.new_run_id, "forked", request, now, of=source.id, location=at, patched=len(request.patch)),
    )


def of_entry(run_id: str, entry: Entry, now: Micros) -> AuditFact | None:
    """The fact of a failed attempt that will be retried. None for other entries: they are their own record."""
    if entry.state is not EntryState.RETRYING or entry.error is None:
        return None
    data: dict[str, str | int] = {
        "location": entry.location,
        "attempt": entry.attempts,
        "error": str(entry.error)[:500],
    }
    return AuditFact(run_id=run_id, event="retried", at=now, data=data)


def of_beat(run: Run, checkpoint: Checkpoint, now: Micros) -> AuditFact | None:
    """The fact of a heartbeat of a long step, if the checkpoint has one.

    Token and number identify it, so a heartbeat that is written twice is recognised.
    """
    if not checkpoint.beat:
        return None
    data: dict[str, str | int] = {"worker": run.worker or "", BEAT: f"{run.token}.{checkpoint.beat}"}
    return AuditFact(run_id=run.id, event="heartbeat", at=now, data=data)


def of_wake(run: Run, arrival: Arrival, by: str, now: Micros) -> AuditFact:
    """The fact that an arrival made a suspended run ready. `by` is the sender, if known."""
    data: dict[str, str | int] = {"cause": arrival.kind.value, "name": arrival.name}
    if by:
        data[BY] = by
    return AuditFact(run_id=run.id, event="woken", at=now, data=data)


def of_parking(run: Run, limit: str, now: Micros) -> AuditFact:
    """The fact that a limit of its type parked a run that was due."""
    return AuditFact(run_id=run.id, event="parked", at=now, data={"limit": limit})


def of_drop(run_id: str, message: MessageToRun, why: str, now: Micros) -> AuditFact:
    """The fact that a message sent by a run was dropped. Its id tells a repeat from a second message."""
    data: dict[str, str | int] = {"id": message.id, "name": message.name, "to": message.run_id or "", "why": why}
    return AuditFact(run_id=run_id, event="dropped", at=now, data=data)
