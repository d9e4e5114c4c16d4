"""The fields of a run: how a run is split into fields of its head, and which index entries it has.

The *moving part* has everything that a claim changes, so that a claim need not decode the body. A renewal changes only
the ready time. The body of an ended run has everything, because an ended run is not claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.stores.kv import names

encode = msgspec.json.encode

DELETED = "deleted"
"""The state under which deleted runs are indexed."""


class Moving(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fields of a live run that claims change, and those that a claim reads. The order is part of the layout."""

    state: RunState
    token: int
    worker: str | None
    claim_id: str | None
    crashes: int
    attempt: int
    first_claimed_at: Micros | None
    python: str | None
    updated_at: Micros
    arrivals: int
    is_pausing: bool
    rollback: RunState | None
    suspended_at: Micros | None
    created_at: Micros
    type: str
    priority: int


_decode_moving = msgspec.json.Decoder(Moving).decode
_decode_body = msgspec.json.Decoder(Run).decode


def moving_of(run: Run) -> bytes:
    return encode(
        (
            run.state,
            run.token,
            run.worker,
            run.claim_id,
            run.crashes,
            run.attempt,
            run.first_claimed_at,
            run.python,
            run.updated_at,
            run.arrivals,
            run.is_pausing,
            run.rollback,
            run.suspended_at,
            run.created_at,
            run.type,
            run.priority,
        )
    )


def body_of(run: Run) -> bytes:
    """Return the body of a run: all but its payload and, of a live run, all but its moving part and ready time."""
    if run.state.is_end:
        return encode(replace(run, payload="") if run.payload else run)
    return encode(
        replace(
            run,
            payload="",
            state=RunState.PENDING,
            token=0,
            worker=None,
            claim_id=None,
            crashes=0,
            attempt=1,
            first_claimed_at=None,
            python=None,
            updated_at=0,
            arrivals=0,
            is_pausing=False,
            rollback=None,
            suspended_at=None,
            ready_at=None,
        )
    )


_BODY_FIELDS = (
    "start_at",
    "key",
    "finished_at",
    "generation",
    "parent_location",
    "result",
    "error",
    "continued",
    "slots",
    "deleted_at",
    "purge_at",
)
"""Fields of the body that may change while a run lives, besides those that never change."""


def ready_text(ready_at: Micros) -> bytes:
    return b"%d" % ready_at


def fields_of(run: Run) -> dict[str, bytes]:
    """Return all fields of a new run, without waits."""
    fields = {names.BODY: body_of(run), names.PAYLOAD: run.payload.encode()}
    if not run.state.is_end:
        fields[names.MOVING] = moving_of(run)
    if run.ready_at is not None:
        fields[names.READY] = ready_text(run.ready_at)
    return fields


def changed_fields(before: Run, after: Run) -> tuple[dict[str, bytes], list[str]]:
    """Return the fields that a change writes, and those that it drops.

    An unchanged ready time is not written: a renewal may have moved it meanwhile.
    """
    puts: dict[str, bytes] = {}
    drops: list[str] = []
    is_end, was_end = after.state.is_end, before.state.is_end
    if is_end or was_end or any(getattr(before, name) != getattr(after, name) for name in _BODY_FIELDS):
        puts[names.BODY] = body_of(after)
    if not is_end:
        puts[names.MOVING] = moving_of(after)
    elif not was_end:
        drops.append(names.MOVING)
    if before.ready_at != after.ready_at:
        if after.ready_at is None:
            drops.append(names.READY)
        else:
            puts[names.READY] = ready_text(after.ready_at)
    return puts, drops


def run_of(fields: Mapping[str, bytes]) -> Run:
    """Return the run that a head holds. Raises an error of the decoder if it cannot be read."""
    body = _decode_body(fields[names.BODY])
    payload = fields.get(names.PAYLOAD)
    text = "" if payload is None else payload.decode()
    moving = fields.get(names.MOVING)
    if moving is None:
        return replace(body, payload=text)
    moved = _decode_moving(moving)
    ready = fields.get(names.READY)
    return replace(
        body,
        payload=text,
        state=moved.state,
        token=moved.token,
        worker=moved.worker,
        claim_id=moved.claim_id,
        crashes=moved.crashes,
        attempt=moved.attempt,
        first_claimed_at=moved.first_claimed_at,
        python=moved.python,
        updated_at=moved.updated_at,
        arrivals=moved.arrivals,
        is_pausing=moved.is_pausing,
        rollback=moved.rollback,
        suspended_at=moved.suspended_at,
        ready_at=None if ready is None else int(ready),
    )


# Indexes


def state_name(run: Run) -> str:
    return run.state.value if run.deleted_at is None else DELETED


def entries_of(run: Run) -> Iterator[tuple[str, str, int]]:
    """Yield the index entries of a run that change with its state: index, member and score."""
    entries, catalogued = _entries(run)
    for index, (member, score) in entries.items():
        yield index, member, score
    for index, name in catalogued:
        yield index, name, 0


def _entries(run: Run) -> tuple[dict[str, tuple[str, int]], list[tuple[str, str]]]:
    """Return the entries of a run itself (index to member and score), and its names in catalogues."""
    id, type, state, worker = run.id, run.type, state_name(run), run.worker
    member = names.created_member(run)
    entries = {names.by_state(state, type): (member, 0)}
    catalogued = [(names.STATES, f"{state}:{type}")]
    if worker is not None:
        entries[names.held_by(worker)] = id, 0
        catalogued.append((names.HOLDERS, worker))
    kind = names.lane_kind(run)
    if kind is not None:
        entries[names.lane(kind, run.priority, type)] = id, run.ready_at or 0
        catalogued += ((names.lanes(type), f"{kind}:{run.priority}"), (names.LANED_TYPES, type))
    if run.purge_at is not None:
        entries[names.PURGE] = f"{names.time_text(run.purge_at)}{id}", 0
    elif run.finished_at is not None:
        entries[names.ended(type)] = f"{names.time_text(run.finished_at)}{id}", 0
    if run.slots:
        entries[names.slotted(type)] = id, 0
    if run.parent_id is not None and not run.state.is_end:
        entries[names.children_index(run.parent_id)] = member, 0
    return entries, catalogued


def lasting_entries_of(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the index entries that a run has from its creation to its removal."""
    member = names.created_member(run)
    yield names.ALL, member
    if run.parent_id is not None:
        yield names.kids_index(run.parent_id), member
    for name, value in run.tags.items():
        yield names.tagged(name, value), member


CATALOGUES = frozenset({names.STATES, names.HOLDERS, names.LANED_TYPES})
"""Indexes of names. A change of one run never removes a name, because other runs may use it."""


def is_catalogue(index: str) -> bool:
    return index in CATALOGUES or index[:2] == "L:"


def entry_changes(before: Run, after: Run) -> tuple[dict[str, list[str]], dict[str, dict[str, int]]]:
    """Return the index entries that a change of a run removes, and those that it adds."""
    old, old_names = _entries(before)
    new, new_names = _entries(after)
    removes = {index: [entry[0]] for index, entry in old.items() if index not in new or new[index][0] != entry[0]}
    adds = {index: {entry[0]: entry[1]} for index, entry in new.items() if old.get(index) != entry}
    for index, name in new_names:
        if (index, name) not in old_names:
            adds[index] = {name: 0}
    return removes, adds
