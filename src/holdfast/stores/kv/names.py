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

from collections.abc import Callable

from holdfast.core import rules
from holdfast.core.claim_order import rank_of
from holdfast.core.clock import Micros
from holdfast.core.model import Run
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


def time_text(at: Micros) -> str:
    """Return an instant as text of fixed width."""
    return _TIME_FORMAT % (at if 0 <= at <= _LAST_TIME else min(max(at, 0), _LAST_TIME))


def number_text(number: int) -> str:
    """Return a number as text of fixed width."""
    return f"{number:016x}"


def level_text(level: int) -> str:
    """Return the level of a wait for a slot, which may be negative, as text of fixed width."""
    return f"{level + _LEVEL_ZERO:012x}"


def head(run_id: str) -> str:
    return f"r:{run_id}"


def history(run_id: str) -> str:
    return f"h:{run_id}"


def undo_index(run_id: str) -> str:
    return f"u:{run_id}"


def inbox(run_id: str) -> str:
    return f"i:{run_id}"


def message_ids(run_id: str) -> str:
    return f"y:{run_id}"


def unread_field(message_id: str) -> str:
    return f"u{message_id}"


def receipt_field(message_id: str) -> str:
    return f"r{message_id}"


def values(run_id: str) -> str:
    return f"v:{run_id}"


def replies(run_id: str) -> str:
    return f"z:{run_id}"


def audit(run_id: str) -> str:
    return f"a:{run_id}"


def key(key: str) -> str:
    return f"k:{key}"


def children(run_id: str) -> str:
    return f"c:{run_id}"


def children_index(run_id: str) -> str:
    return f"C:{run_id}"


def kids_index(run_id: str) -> str:
    return f"kids:{run_id}"


def queue(queue: str) -> str:
    return f"p:{queue}"


def queue_index(queue: str) -> str:
    return f"P:{queue}"


def waiters(topic: str) -> str:
    return f"w:{topic}"


def waiters_index(topic: str) -> str:
    return f"W:{topic}"


def events(topic: str) -> str:
    return f"e:{topic}"


def events_index(topic: str) -> str:
    return f"E:{topic}"


def type_rule(type: str) -> str:
    return f"t:{type}"


def slotted(type: str) -> str:
    return f"S:{type}"


def key_queues(type: str) -> str:
    return f"K:{type}"


def slot(slot: str) -> str:
    return f"s:{slot}"


def leases(type: str) -> str:
    return f"g:{type}"


def leases_by(worker: str) -> str:
    return f"n:{worker}"


def letter(number: int) -> str:
    return f"d:{number}"


def schedule(name: str) -> str:
    return f"S/{name}"


def flows(type: str) -> str:
    return f"f:{type}"


def flow_texts(type: str, registered_at: Micros) -> str:
    return f"j:{time_text(registered_at)}:{type}"


def origin(export_id: str) -> str:
    return f"o:{export_id}"


def lanes(type: str) -> str:
    return f"L:{type}"


def lane(kind: str, priority: int, type: str) -> str:
    return f"Q:{kind}:{priority}:{type}"


def held_by(worker: str) -> str:
    return f"H:{worker}"


def by_state(state: str, type: str) -> str:
    return f"by:{state}:{type}"


def tagged(name: str, value: str) -> str:
    return f"tag:{name}={value}"


def ended(type: str) -> str:
    return f"ended:{type}"


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
    """Return the read that tells if a run has an entry with an undo."""
    return Range(undo_index(run_id), limit=1)


def all_children(run_id: str) -> Range:
    """Return the read of the live children of a run."""
    return Range(children_index(run_id))


def all_of(run_id: str) -> list[str]:
    """Return the names of everything that belongs to one run. The list of runs under it lives as long as these."""
    makers = (head, history, undo_index, inbox, message_ids, values, replies, audit, children, children_index)
    return [name(run_id) for name in makers]
