"""Conversion between rows and values. Nothing here accesses a database.

`RUN_COLUMNS` and the other `…_COLUMNS` are the only place that fixes the order of columns. Every statement that reads
or writes whole values is built from them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.errors import ErrorRecord
from holdfast.core.model import (
    DEFAULT_OPTIONS,
    Arrival,
    AuditFact,
    Entry,
    EntryKind,
    EntryState,
    Rate,
    Run,
    RunOptions,
    TypeRule,
    Wait,
    WaitKind,
    WorkerRecord,
)
from holdfast.core.states import RunState
from holdfast.core.unreadable import reason_of
from holdfast.stores.operations.unit_of_work import OddRow

Row = tuple[Any, ...]
"""A row as the driver returns and accepts it: any values that SQLite can store."""

RUN_COLUMNS = (
    "id, type, state, priority, ready_at, worker, token, claim_id, crashes, arrivals, attempt, generation, key, "
    "parent_id, parent_location, on_close, created_at, start_at, updated_at, first_claimed_at, finished_at, python, "
    "result, error, rollback, is_pausing, suspended_at, slots, retention, deleted_at, "
    "purge_at"
)
ENTRY_COLUMNS = (
    "location, kind, state, position, attempts, result, error, started_at, finished_at, retry_at, ref, since, has_undo"
)
ARRIVAL_COLUMNS = "number, kind, name, at, payload, ref, state, error, family, is_exclusive"
WAIT_COLUMNS = "location, kind, since, names, deadline, after, count"
AUDIT_COLUMNS = "run_id, event, at, data"
TYPE_COLUMNS = "name, runtime, description, is_enabled, concurrency, per_key, rate, retention, seen_by, seen_at, plan"
WORKER_COLUMNS = "id, name, host, pid, types, concurrency, started_at, heartbeat_at"

# Looking up a member in a dict takes a tenth of the time of calling the enum.
_RUN_STATES = {state.value: state for state in RunState}
_ENTRY_KINDS = {kind.value: kind for kind in EntryKind}
_ENTRY_STATES = {state.value: state for state in EntryState}
_WAIT_KINDS = {kind.value: kind for kind in WaitKind}

_FAILURES = (KeyError, TypeError, msgspec.MsgspecError, RecursionError)
"""The errors that decoding raises for a row that was edited by hand."""

_encode = msgspec.json.Encoder().encode
_decode_error = msgspec.json.Decoder(ErrorRecord).decode
_decode_tags = msgspec.json.Decoder(dict[str, str]).decode
_decode_options = msgspec.json.Decoder(RunOptions).decode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_per_key = msgspec.json.Decoder(dict[str, int]).decode
_decode_rate = msgspec.json.Decoder(Rate).decode
_decode_data = msgspec.json.Decoder(dict[str, str | int]).decode


def json_of(value: object) -> str:
    """Encode one of holdfast's own values, never a user's, as JSON text."""
    return _encode(value).decode()


def placed(columns: str) -> str:
    """Return one placeholder per column."""
    return ", ".join("?" * (columns.count(",") + 1))


def prefixed(table: str, columns: str) -> str:
    """Return the columns, each prefixed with its table."""
    return ", ".join(f"{table}.{column}" for column in columns.split(", "))


WHOLE_RUN = f"{prefixed('run', RUN_COLUMNS)}, intent.payload, intent.tags, intent.options, intent.continued"
"""The columns of a whole run, from `run` joined with `intent`."""


def run_of(
    row: Row, payload: str = "", tags: str | None = None, options: str | None = None, continued: str | None = None
) -> Run:
    """Decode a row of `RUN_COLUMNS`. The other arguments come from `intent`; without them, their fields stay empty."""
    (
        id, type, state, priority, ready_at, worker, token, claim_id, crashes, arrivals, attempt, generation, key,
        parent_id, parent_location, on_close, created_at, start_at, updated_at, first_claimed_at, finished_at, python,
        result, error, rollback, is_pausing, suspended_at, slots, retention, deleted_at, purge_at,
    ) = row  # fmt: skip
    try:
        return Run(
            id=id,
            type=type,
            state=_RUN_STATES[state],
            payload=payload,
            created_at=created_at,
            start_at=start_at,
            updated_at=updated_at,
            priority=priority,
            ready_at=ready_at,
            key=key,
            tags=_decode_tags(tags) if tags else {},
            worker=worker,
            token=token,
            claim_id=claim_id,
            first_claimed_at=first_claimed_at,
            finished_at=finished_at,
            python=python,
            attempt=attempt,
            generation=generation,
            crashes=crashes,
            arrivals=arrivals,
            parent_id=parent_id,
            parent_location=parent_location,
            on_close=on_close,
            result=result,
            error=_decode_error(error) if error is not None else None,
            rollback=_RUN_STATES[rollback] if rollback is not None else None,
            is_pausing=bool(is_pausing),
            suspended_at=suspended_at,
            continued=continued,
            slots=_decode_names(slots) if slots is not None else (),
            retention=retention,
            deleted_at=deleted_at,
            purge_at=purge_at,
            options=options_of(options),
        )
    except _FAILURES as error:
        raise OddRow(f"run {id} cannot be read: {reason_of(error)}") from error


def options_of(text: str | None) -> RunOptions:
    return _decode_options(text) if text is not None else DEFAULT_OPTIONS


def whole_run_of(row: Row) -> Run:
    """Decode a row of `WHOLE_RUN`."""
    return run_of(row[:-4], *row[-4:])


def run_row(run: Run) -> Row:
    return (
        run.id,
        run.type,
        run.state,
        run.priority,
        run.ready_at,
        run.worker,
        run.token,
        run.claim_id,
        run.crashes,
        run.arrivals,
        run.attempt,
        run.generation,
        run.key,
        run.parent_id,
        run.parent_location,
        run.on_close,
        run.created_at,
        run.start_at,
        run.updated_at,
        run.first_claimed_at,
        run.finished_at,
        run.python,
        run.result,
        error_text(run.error),
        run.rollback,
        run.is_pausing,
        run.suspended_at,
        slots_text(run.slots),
        run.retention,
        run.deleted_at,
        run.purge_at,
    )


def intent_row(run: Run) -> Row:
    """Return a row of run_id, payload, tags, options, continued."""
    options = json_of(run.options) if run.options is not DEFAULT_OPTIONS else None
    return run.id, run.payload, tags_text(run.tags), options, run.continued


def entry_of(row: Row) -> Entry:
    (
        location, kind, state, position, attempts, result, error, started_at, finished_at, retry_at, ref, since,
        has_undo,
    ) = row  # fmt: skip
    try:
        return Entry(
            location=location,
            kind=_ENTRY_KINDS[kind],
            state=_ENTRY_STATES[state],
            position=position,
            attempts=attempts,
            result=result,
            error=_decode_error(error) if error is not None else None,
            started_at=started_at,
            finished_at=finished_at,
            retry_at=retry_at,
            ref=ref,
            since=since,
            has_undo=bool(has_undo),
        )
    except _FAILURES as error:
        raise OddRow(f"the entry at {location!r} cannot be read: {reason_of(error)}") from error


def entry_row(run_id: str, token: int, entry: Entry) -> Row:
    """Return a row of run_id, `ENTRY_COLUMNS`, token."""
    return (
        run_id,
        entry.location,
        entry.kind,
        entry.state,
        entry.position,
        entry.attempts,
        entry.result,
        None if entry.error is None else error_text(entry.error),
        entry.started_at,
        entry.finished_at,
        entry.retry_at,
        entry.ref,
        entry.since,
        entry.has_undo,
        token,
    )


def arrival_of(row: Row) -> Arrival:
    number, kind, name, at, payload, ref, state, error, family, is_exclusive = row
    try:
        return Arrival(
            number=number,
            kind=_WAIT_KINDS[kind],
            name=name,
            at=at,
            payload=payload,
            ref=ref,
            state=_RUN_STATES[state] if state is not None else None,
            error=_decode_error(error) if error is not None else None,
            group=family,
            is_exclusive=bool(is_exclusive),
        )
    except _FAILURES as error:
        raise OddRow(f"arrival {number} cannot be read: {reason_of(error)}") from error


def arrival_row(run_id: str, arrival: Arrival) -> Row:
    """Return a row of run_id, `ARRIVAL_COLUMNS`."""
    return (
        run_id,
        arrival.number,
        arrival.kind,
        arrival.name,
        arrival.at,
        arrival.payload,
        arrival.ref,
        arrival.state,
        error_text(arrival.error),
        arrival.group,
        arrival.is_exclusive,
    )


def wait_of(row: Row) -> Wait:
    location, kind, since, names, deadline, after, count = row
    try:
        return Wait(
            location=location,
            kind=_WAIT_KINDS[kind],
            since=since,
            names=_decode_names(names),
            deadline=deadline,
            after=after,
            count=count,
        )
    except _FAILURES as error:
        raise OddRow(f"the wait at {location!r} cannot be read: {reason_of(error)}") from error


def wait_row(run_id: str, place: int, wait: Wait) -> Row:
    """Return a row of run_id, place, `WAIT_COLUMNS`, topic.

    `topic` is the topic of an event, or the group or limit whose slot the run waits for. It serves to find the waits.
    """
    topic = wait.names[0] if wait.kind in (WaitKind.EVENT, WaitKind.SLOT) and wait.names else None
    names = json_of(wait.names)
    return run_id, place, wait.location, wait.kind, wait.since, names, wait.deadline, wait.after, wait.count, topic


def type_of(row: Row) -> TypeRule:
    name, runtime, description, is_enabled, concurrency, per_key, rate, retention, seen_by, seen_at, plan = row
    return TypeRule(
        name=name,
        runtime=runtime,
        description=description,
        is_enabled=bool(is_enabled),
        concurrency=concurrency,
        per_key=_decode_per_key(per_key) if per_key is not None else {},
        rate=_decode_rate(rate) if rate is not None else None,
        retention=retention,
        seen_by=seen_by,
        seen_at=seen_at,
        plan=_decode_names(plan) if plan is not None else (),
    )


def type_row(rule: TypeRule) -> Row:
    return (
        rule.name,
        rule.runtime,
        rule.description,
        rule.is_enabled,
        rule.concurrency,
        json_of(rule.per_key) if rule.per_key else None,
        json_of(rule.rate) if rule.rate is not None else None,
        rule.retention,
        rule.seen_by,
        rule.seen_at,
        json_of(rule.plan) if rule.plan else None,
    )


def fact_of(row: Row) -> AuditFact:
    run_id, event, at, data = row
    try:
        return AuditFact(run_id=run_id, event=event, at=at, data=_decode_data(data) if data else {})
    except _FAILURES as error:
        return AuditFact(run_id=run_id, event=event, at=at, data={"unreadable": reason_of(error)})


def fact_row(fact: AuditFact) -> Row:
    return fact.run_id, fact.event, fact.at, json_of(fact.data) if fact.data else None


def worker_of(row: Row) -> WorkerRecord:
    id, name, host, pid, types, concurrency, started_at, heartbeat_at = row
    return WorkerRecord(
        id=id,
        name=name,
        host=host,
        pid=pid,
        types=_decode_names(types),
        concurrency=concurrency,
        started_at=started_at,
        heartbeat_at=heartbeat_at,
    )


def tags_of(text: str) -> dict[str, str]:
    return _decode_tags(text)


def tags_text(tags: dict[str, str]) -> str | None:
    return json_of(tags) if tags else None


def slots_text(slots: tuple[str, ...]) -> str | None:
    return json_of(slots) if slots else None


def error_text(error: ErrorRecord | None) -> str | None:
    return json_of(error) if error is not None else None
