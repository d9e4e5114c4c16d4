"""Names: the layout of the data of the key-value store. Every partition, index, log and field is named here.

Partitions (P), indexes (I) and logs (L):

    P r:<run>            the head of a run: fields `b` body, `m` moving part, `t` ready time, `p` payload, `w` waits
    P h:<run>            history: one field per location            I u:<run>  locations with an undo
    P i:<run>            inbox: one field per arrival, by number
    P y:<run>            message ids: `u<id>` of an unread message, `r<id>` the time of receipt
    P v:<run>  P z:<run> published values, by name; replies, by message id
    L a:<run>            audit facts
    P k:<key>            field `id`: the run that has the key
    P c:<run>            version of its children                    I C:<run>  live children  I kids:<run>  all
    P p:<queue>          version of the queue for a slot            I P:<queue>  places of the runs that wait
    P w:<topic>          version of the waits for a topic           I W:<topic>  places of the runs that wait
    P e:<topic>          events by number, and numbers by id        I E:<topic>  open and pending events
    P t:<type>           `rule` and `window`                        I S:<type>  runs with slots  I K:<type>  key queues
    P s:<slot>           `used`: how many runs have the slot
    P g:<type>           version of the leases of a type            P n:<worker>  version of the leases of a worker
    P d:<number>         a dead letter                              I letters
    P S/<name>           a schedule                                 I schedules  I due-schedules
    P f:<type>           registrations of a flow, by time           I flows  types that are flows
    P j:<time>:<type>    `source` and `program` of a registration
    P o:<export>         progress of an import
    P topics  P ruled  P workers  P meta

    I T                  types that have lanes
    I L:<type>           lanes of a type: <kind>:<priority>
    I Q:<kind>:<priority>:<type>   a lane: claimable runs, by ready time. Kinds: see `lane_of`
    I H:<worker>         runs that a worker holds                   I holders  workers that hold runs
    I all                all runs, by time of creation
    I by:<state>:<type>  runs by state and type, by time of creation  I states  names of those indexes
    I tag:<name>=<value> runs by tag, by time of creation
    I ended:<type>       ended runs by time of their end            I purge  runs with a time of removal of their own
    I events             all events, by age                         I types  types with rules
    I published          topics that have events
    I receipts  I replies   by age
    I slots              slots in use

A name is never built by user input alone: its prefix says what it is. Times in names have a fixed width, so that the
order of the bytes is the order in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.claim_order import rank_of
from holdfast.core.clock import Micros
from holdfast.core.model import FIXED, Run, columns_of, compiled
from holdfast.core.states import RunState
from holdfast.core.wire import PLACEHOLDERS
from holdfast.stores.kv.driver import Range

BODY = "b"
MOVING = "m"
READY = "t"
PAYLOAD = "p"
WAITS = "w"

TOPICS = "topics"
RULED = "ruled"
WORKERS = "workers"
META = "meta"

ALL = "all"
STATES = "states"
PURGE = "purge"
EVENTS = "events"
PUBLISHED = "published"
TYPES = "types"
LETTERS = "letters"
SCHEDULES = "schedules"
DUE_SCHEDULES = "due-schedules"
FLOWS = "flows"
RECEIPTS = "receipts"
REPLIES = "replies"
SLOTS = "slots"
HOLDERS = "holders"
LANED_TYPES = "T"

EVENT_NUMBERS = "event-numbers"
LETTER_NUMBERS = "letter-numbers"

HELD_LANE = "l"
SUSPECT_LANE = "z"
FREE_LANES = ("q0", "q1", "q2")
"""Lanes of free runs that are no suspects, by rank."""

TIME_DIGITS = 15
_LAST_TIME = 16**TIME_DIGITS - 1
_LEVEL_ZERO = 2**43
_TIME_FORMAT = f"%0{TIME_DIGITS}x"

Namer = Callable[[str], str]
"""A function of this module: the name for an id."""


def _begins(prefix: str) -> Namer:
    """Return the function that makes the names with a prefix."""
    return prefix.__add__


head = _begins("r:")
history = _begins("h:")
undo_index = _begins("u:")
inbox = _begins("i:")
message_ids = _begins("y:")
unread_field = _begins("u")
receipt_field = _begins("r")
values = _begins("v:")
replies = _begins("z:")
audit = _begins("a:")
key = _begins("k:")
children = _begins("c:")
children_index = _begins("C:")
kids_index = _begins("kids:")
queue = _begins("p:")
queue_index = _begins("P:")
waiters = _begins("w:")
waiters_index = _begins("W:")
events = _begins("e:")
events_index = _begins("E:")
type_rule = _begins("t:")
slotted = _begins("S:")
key_queues = _begins("K:")
slot = _begins("s:")
leases = _begins("g:")
leases_by = _begins("n:")
schedule = _begins("S/")
flows = _begins("f:")
origin = _begins("o:")
lanes = _begins("L:")
held_by = _begins("H:")
ended = _begins("ended:")


def time_text(at: Micros) -> str:
    """Return an instant as text of fixed width."""
    return _TIME_FORMAT % (at if 0 <= at <= _LAST_TIME else min(max(at, 0), _LAST_TIME))


def number_text(number: int) -> str:
    """Return a number as text of fixed width."""
    return f"{number:016x}"


def level_text(level: int) -> str:
    """Return the level of a wait for a slot, which may be negative, as text of fixed width."""
    return f"{level + _LEVEL_ZERO:012x}"


def letter(number: int) -> str:
    return f"d:{number}"


def flow_texts(type: str, registered_at: Micros) -> str:
    return f"j:{time_text(registered_at)}:{type}"


def lane(kind: str, priority: int, type: str) -> str:
    return f"Q:{kind}:{priority}:{type}"


def by_state(state: str, type: str) -> str:
    return f"by:{state}:{type}"


def tagged(name: str, value: str) -> str:
    return f"tag:{name}={value}"


def created_member(run: Run) -> str:
    """Return the member of a run in the indexes that are ordered by creation."""
    return f"{time_text(run.created_at)}{run.id}"


def lane_kind(run: Run) -> str | None:
    """Return the kind of lane that a run is in: suspect, held, or free with its rank. None if it cannot be claimed."""
    if run.ready_at is None:
        return None
    if rules.is_suspect(run):
        return SUSPECT_LANE
    return HELD_LANE if run.is_held else FREE_LANES[rank_of(run)]


# Reads


def all_undo(run_id: str) -> Range:
    """Return the read that shows if a run has an entry with an undo."""
    return Range(undo_index(run_id), limit=1)


def all_children(run_id: str) -> Range:
    """Return the read of the live children of a run."""
    return Range(children_index(run_id))


def all_of(run_id: str) -> list[str]:
    """Return the names of everything that belongs to one run. The list of runs under it lives as long as these."""
    makers = (head, history, undo_index, inbox, message_ids, values, replies, audit, children, children_index)
    return [name(run_id) for name in makers]


# The fields of a run
#
# The *moving part* has everything that a claim changes, so that a claim need not decode the body. A renewal changes
# only the ready time. The body of an ended run has everything, because an ended run is not claimed.

encode = msgspec.json.encode

DELETED = "deleted"
"""The state under which deleted runs are indexed."""


MOVING_FIELDS = (
    "state", "token", "worker", "claim_id", "crashes", "attempt", "first_claimed_at", "python", "updated_at",
    "arrivals", "stop", "rollback", "suspended_at", "created_at", "type", "priority",
)  # fmt: skip
"""The fields of a live run that claims change, and those that a claim reads. The order is part of the layout."""

_COLUMNS = columns_of(Run)
_MOVED = [name for name in MOVING_FIELDS if name not in FIXED]

Moving = msgspec.defstruct(
    "Moving", [(name, _COLUMNS[name].annotation) for name in MOVING_FIELDS], array_like=True, frozen=True, gc=False
)
"""The moving part of a run."""

_AT_REST = {name: PLACEHOLDERS[name] for name in ("payload", "ready_at", *_MOVED)} | {"state": RunState.PENDING}
"""Values in the body of a live run, in place of fields that are stored elsewhere."""

decode_moving = msgspec.json.Decoder(Moving).decode
decode_body = msgspec.json.Decoder(Run).decode


moving_of: Callable[[Run], bytes] = compiled(
    "moving_of",
    f"def moving_of(run): return encode(({', '.join(f'run.{name}' for name in MOVING_FIELDS)}))",
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
_lasting = attrgetter(*(name for name in _COLUMNS if name not in (*FIXED, *MOVING_FIELDS, "ready_at")))
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
    fields = {BODY: body_of(run), PAYLOAD: run.payload.encode()}
    if not run.state.is_end:
        fields[MOVING] = moving_of(run)
    if run.ready_at is not None:
        fields[READY] = ready_text(run.ready_at)
    return fields


def changed_fields(before: Run, after: Run) -> tuple[dict[str, bytes], list[str]]:
    """Return the fields that a change writes, and those that it drops.

    An unchanged ready time is not written: a renewal may have moved it meanwhile.
    """
    puts: dict[str, bytes] = {}
    drops: list[str] = []
    is_end, was_end = after.state.is_end, before.state.is_end
    if is_end or was_end or _lasting(before) != _lasting(after):
        puts[BODY] = body_of(after)
    if not is_end:
        puts[MOVING] = moving_of(after)
    elif not was_end:
        drops.append(MOVING)
    if before.ready_at != after.ready_at:
        if after.ready_at is None:
            drops.append(READY)
        else:
            puts[READY] = ready_text(after.ready_at)
    return puts, drops


def run_of(fields: Mapping[str, bytes]) -> Run:
    """Return the run that a head holds. Raises an error of the decoder if it cannot be read."""
    body = decode_body(fields[BODY])
    payload = fields.get(PAYLOAD)
    text = "" if payload is None else payload.decode()
    moving = fields.get(MOVING)
    if moving is None:
        return replace(body, payload=text)
    ready = fields.get(READY)
    return _joined(body, decode_moving(moving), text, None if ready is None else int(ready))


# Indexes


def entries_of(run: Run) -> list[tuple[str, str, int]]:
    """Return the index entries of a run that change with its state: index, member and score."""
    places = _places_of(run)
    entries = [entry for entry in _entries(run, places, created_member(run)) if entry is not None]
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
    catalogued = [(STATES, f"{state}:{type}")]
    if worker is not None:
        catalogued.append((HOLDERS, worker))
    if kind is not None:
        catalogued += ((lanes(type), f"{kind}:{priority}"), (LANED_TYPES, type))
    return _Places(
        by_state=by_state(state, type),
        held_by=None if worker is None else held_by(worker),
        lane=None if kind is None else lane(kind, priority, type),
        catalogued=tuple(catalogued),
    )


def _places_of(run: Run) -> _Places:
    state = run.state.value if run.deleted_at is None else DELETED
    return _places(state, run.type, run.worker, lane_kind(run), run.priority)


_Entry = tuple[str, str, int] | None
"""An entry of an index: index, member and score."""


def _entries(run: Run, places: _Places, member: str) -> tuple[_Entry, ...]:
    """Return the entries of a run by state, holder, lane, end, slots and parent, with None for those it has not."""
    id, end = run.id, None
    if run.purge_at is not None:
        end = (PURGE, f"{time_text(run.purge_at)}{id}", 0)
    elif run.finished_at is not None:
        end = (ended(run.type), f"{time_text(run.finished_at)}{id}", 0)
    return (
        (places.by_state, member, 0),
        None if places.held_by is None else (places.held_by, id, 0),
        None if places.lane is None else (places.lane, id, run.ready_at or 0),
        end,
        (slotted(run.type), id, 0) if run.slots else None,
        (children_index(run.parent_id or ""), member, 0) if is_live_child(run) else None,
    )


def is_live_child(run: Run) -> bool:
    """True if the parent of a run finds it among its live children."""
    return rules.is_child(run) and not run.state.is_end


def lasting_entries_of(run: Run) -> list[tuple[str, str, int]]:
    """Return the index entries that a run has from its creation to its removal."""
    member = created_member(run)
    entries = [(ALL, member, 0)]
    if run.parent_id is not None:
        entries.append((kids_index(run.parent_id), member, 0))
    entries += [(tagged(name, value), member, 0) for name, value in run.tags.items()]
    return entries


CATALOGUES = frozenset({STATES, HOLDERS, LANED_TYPES})
"""Indexes of names. A change of one run never removes a name, because other runs may use it."""


def is_catalogue(index: str) -> bool:
    return index in CATALOGUES or index[:2] == "L:"


def entry_changes(before: Run, after: Run) -> tuple[dict[str, Sequence[str]], dict[str, dict[str, int]]]:
    """Return the index entries that a change of a run removes, and those that it adds."""
    removes: dict[str, Sequence[str]] = {}
    adds: dict[str, dict[str, int]] = {}
    old, new = _places_of(before), _places_of(after)
    member = created_member(after)
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
