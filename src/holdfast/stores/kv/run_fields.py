"""The fields of a run: how a run is split into fields of its head, and which index entries it has.

The *moving part* has everything that a claim changes, so that a claim need not decode the body. A renewal changes only
the ready time. The body of an ended run has everything, because an ended run is not claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import kinship
from holdfast.core.clock import Micros
from holdfast.core.columns import FIXED, columns_of, compiled
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.core.unreadable import PLACEHOLDERS
from holdfast.stores.kv import names

encode = msgspec.json.encode

DELETED = "deleted"
"""The state under which deleted runs are indexed."""


MOVING = (
    "state", "token", "worker", "claim_id", "crashes", "attempt", "first_claimed_at", "python", "updated_at",
    "arrivals", "stop", "rollback", "suspended_at", "created_at", "type", "priority",
)  # fmt: skip
"""The fields of a live run that claims change, and those that a claim reads. The order is part of the layout."""

_COLUMNS = columns_of(Run)
_MOVED = [name for name in MOVING if name not in FIXED]

Moving = msgspec.defstruct(
    "Moving", [(name, _COLUMNS[name].annotation) for name in MOVING], array_like=True, frozen=True, gc=False
)
"""The moving part of a run."""

_AT_REST = {name: PLACEHOLDERS[name] for name in ("payload", "ready_at", *_MOVED)} | {"state": RunState.PENDING}
"""What the body of a live run has in place of fields that are stored elsewhere."""

_decode_moving = msgspec.json.Decoder(Moving).decode
_decode_body = msgspec.json.Decoder(Run).decode


moving_of: Callable[[Run], bytes] = compiled(
    "moving_of",
    f"def moving_of(run): return encode(({', '.join(f'run.{name}' for name in MOVING)}))",
    {"encode": encode},
)
_joined: Callable[[Run, msgspec.Struct, str, Micros | None], Run] = compiled(
    "joined",
    f"""
    def joined(body, moving, payload, ready_at):
        return replace(body, payload=payload, ready_at=ready_at, {", ".join(f"{one}=moving.{one}" for one in _MOVED)})
    """,
    {"replace": replace},
)
_lasting = attrgetter(*(name for name in _COLUMNS if name not in FIXED and name not in MOVING and name != "ready_at"))
"""Returns the fields of the body that may change while a run lives."""


def body_of(run: Run) -> bytes:
    """Return the body of a run: all but its payload and, of a live run, all but its moving part and ready time."""
    if run.state.is_end:
        return encode(replace(run, payload="") if run.payload else run)
    return encode(replace(run, **_AT_REST))


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
    if is_end or was_end or _lasting(before) != _lasting(after):
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
    ready = fields.get(names.READY)
    return _joined(body, _decode_moving(moving), text, None if ready is None else int(ready))


# Indexes


def state_name(run: Run) -> str:
    return run.state.value if run.deleted_at is None else DELETED


def entries_of(run: Run) -> list[tuple[str, str, int]]:
    """Return the index entries of a run that change with its state: index, member and score."""
    places = _places_of(run)
    entries = [entry for entry in _entries(run, places, names.created_member(run)) if entry is not None]
    entries += [(index, name, 0) for index, name in places.catalogued]
    return entries


class _Places(NamedTuple):
    """The indexes that runs of one type, state and holder are in, and their names in catalogues."""

    by_state: str
    held_by: str | None
    lane: str | None
    catalogued: tuple[tuple[str, str], ...]


@lru_cache(maxsize=4_096)
def _places(state: str, type: str, worker: str | None, kind: str | None, priority: int) -> _Places:
    """Return the names for all runs of one kind. They are kept, because making them costs more than all the rest."""
    catalogued = [(names.STATES, f"{state}:{type}")]
    if worker is not None:
        catalogued.append((names.HOLDERS, worker))
    if kind is not None:
        catalogued += ((names.lanes(type), f"{kind}:{priority}"), (names.LANED_TYPES, type))
    return _Places(
        by_state=names.by_state(state, type),
        held_by=None if worker is None else names.held_by(worker),
        lane=None if kind is None else names.lane(kind, priority, type),
        catalogued=tuple(catalogued),
    )


def _places_of(run: Run) -> _Places:
    return _places(state_name(run), run.type, run.worker, names.lane_kind(run), run.priority)


_Entry = tuple[str, str, int] | None
"""An entry of an index: index, member and score."""


def _entries(run: Run, places: _Places, member: str) -> tuple[_Entry, ...]:
    """Return the entries of a run by state, holder, lane, end, slots and parent, with None for those it has not."""
    id, end = run.id, None
    if run.purge_at is not None:
        end = (names.PURGE, f"{names.time_text(run.purge_at)}{id}", 0)
    elif run.finished_at is not None:
        end = (names.ended(run.type), f"{names.time_text(run.finished_at)}{id}", 0)
    return (
        (places.by_state, member, 0),
        None if places.held_by is None else (places.held_by, id, 0),
        None if places.lane is None else (places.lane, id, run.ready_at or 0),
        end,
        (names.slotted(run.type), id, 0) if run.slots else None,
        (names.children_index(run.parent_id or ""), member, 0) if is_live_child(run) else None,
    )


def is_live_child(run: Run) -> bool:
    """True if the parent of a run finds it among its live children."""
    return kinship.is_child(run) and not run.state.is_end


def lasting_entries_of(run: Run) -> list[tuple[str, str, int]]:
    """Return the index entries that a run has from its creation to its removal."""
    member = names.created_member(run)
    entries = [(names.ALL, member, 0)]
    if run.parent_id is not None:
        entries.append((names.kids_index(run.parent_id), member, 0))
    entries += [(names.tagged(name, value), member, 0) for name, value in run.tags.items()]
    return entries


CATALOGUES = frozenset({names.STATES, names.HOLDERS, names.LANED_TYPES})
"""Indexes of names. A change of one run never removes a name, because other runs may use it."""


def is_catalogue(index: str) -> bool:
    return index in CATALOGUES or index[:2] == "L:"


def entry_changes(before: Run, after: Run) -> tuple[dict[str, Sequence[str]], dict[str, dict[str, int]]]:
    """Return the index entries that a change of a run removes, and those that it adds."""
    removes: dict[str, Sequence[str]] = {}
    adds: dict[str, dict[str, int]] = {}
    old, new = _places_of(before), _places_of(after)
    member = names.created_member(after)
    for was, now in zip(_entries(before, old, member), _entries(after, new, member), strict=True):
        if was == now:
            continue
        if was is not None and (now is None or was[0] != now[0] or was[1] != now[1]):
            removes[was[0]] = (was[1],)
        if now is not None:
            adds[now[0]] = {now[1]: now[2]}
    if new is not old:
        for index, name in new.catalogued:
            if (index, name) not in old.catalogued:
                adds[index] = {name: 0}
    return removes, adds
