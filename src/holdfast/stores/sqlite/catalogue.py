"""The catalogue as rows: types, flows, schedules, workers, dead letters, and the progress of imports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.intent import matches_type
from holdfast.core.model import DeadLetter, Schedule, TypeRule, WorkerRecord
from holdfast.core.questions import Due, ListDeadLetters, ListFlows, ListSchedules
from holdfast.core.topics import FAMILY
from holdfast.core.transfer import Origin
from holdfast.stores.sqlite import rows

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_TYPES = f"select {rows.TYPE_COLUMNS} from type order by name"  # full scan: there are few types
_TYPE = f"select {rows.TYPE_COLUMNS} from type where name = ?"  # by the primary key

_RULED = f"""
    select {rows.TYPE_COLUMNS}
    from type
    where is_enabled = 0
       or concurrency is not null
       or per_key is not null
       or rate is not null
"""  # full scan: there are few types

_PUT_TYPE = rows.upsert("type", rows.TYPE_COLUMNS, "name")


class SqliteTypes:
    """The rules of types. The rules that affect claims are read once per transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection
        self._ruled: dict[str, TypeRule] | None = None

    def get(self, type: str) -> TypeRule | None:
        found = self._connection.execute(_TYPE, (type,)).fetchall()
        return rows.type_of(found[0]) if found else None

    def put(self, rule: TypeRule) -> None:
        self._ruled = None
        self._connection.execute(_PUT_TYPE, rows.type_row(rule))

    def is_ruled(self, type: str) -> bool:
        return type in self.ruled()

    def ruled(self) -> dict[str, TypeRule]:
        """Return the rules of types that are disabled or limited. All other types are unrestricted."""
        if self._ruled is None:
            self._ruled = {rule.name: rule for rule in map(rows.type_of, self._connection.execute(_RULED))}
        return self._ruled


def list_types(connection: apsw.Connection) -> list[TypeRule]:
    return [rows.type_of(row) for row in connection.execute(_TYPES)]


# Flows: one row for each registration. The texts come last in a row, so that a list does not read them.

_FLOW_FIELDS = [field for field in FlowDefinition.__struct_fields__ if field not in ("source", "program")]
_FLOW_COLUMNS = rows.listed(FlowDefinition, _FLOW_FIELDS)

_FLOWS_OF_TYPE = f"""
    select {_FLOW_COLUMNS}
    from flow
    where type = ?
    order by registered_at
"""  # by the primary key

_FLOW_TEXTS = """
    select source, program
    from flow
    where type = ?
      and registered_at = ?
"""  # by the primary key

_PUT_FLOW = f"""
    {rows.insertion("flow", rows.listed(FlowDefinition))}
    on conflict (type, registered_at) do update
    set used_at = excluded.used_at
"""

_REMOVE_FLOW = "delete from flow where type = ? and registered_at = ?"  # by the primary key

_SUPERSEDED_FLOWS = """
    select type
    from flow
    group by type
    having count(*) > 1
    order by type
"""  # a scan of the primary key: there are few

_OLDEST_RUN = "select min(created_at) from run indexed by run_type where type = ?"

_FLOWS = f"""
    select {_FLOW_COLUMNS}
    from flow
    where (type, registered_at) > (?, ?)
    order by type, registered_at
"""  # by the primary key

_flow_of = rows.reader(FlowDefinition, _FLOW_FIELDS, what="the flow {type}")
_flow_row = rows.writer(FlowDefinition)


class SqliteFlows:
    """Registrations of flows, by type and time."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._connection = transaction.connection

    def of(self, type: str) -> Sequence[FlowDefinition]:
        return [_flow_of(row) for row in self._connection.execute(_FLOWS_OF_TYPE, (type,))]

    def whole(self, definition: FlowDefinition) -> FlowDefinition:
        return _whole(self._connection, definition)

    def put(self, definition: FlowDefinition) -> None:
        self._connection.execute(_PUT_FLOW, _flow_row(definition))

    def remove(self, definition: FlowDefinition) -> None:
        self._connection.execute(_REMOVE_FLOW, (definition.type, definition.registered_at))

    def types(self) -> Sequence[str]:
        return [type for (type,) in self._connection.execute(_SUPERSEDED_FLOWS)]

    def oldest_run(self, type: str) -> Micros | None:
        self._transaction.flush()
        oldest: Micros | None = self._connection.execute(_OLDEST_RUN, (type,)).get
        return oldest


def list_flows(connection: apsw.Connection, query: ListFlows) -> list[FlowDefinition]:
    listed: list[FlowDefinition] = []
    for row in connection.execute(_FLOWS, query.after):
        if len(listed) == query.limit:
            break
        if query.admits(definition := _flow_of(row)):
            listed.append(definition)
    return [_whole(connection, one) for one in listed] if query.with_texts else listed


def _whole(connection: apsw.Connection, definition: FlowDefinition) -> FlowDefinition:
    ((source, program),) = connection.execute(_FLOW_TEXTS, (definition.type, definition.registered_at))
    return replace(definition, source=source, program=program)


# Schedules

_SCHEDULE = "select body from schedule where name = ?"  # by the primary key
_PUT_SCHEDULE = rows.upsert("schedule", "name, type, next_at, body", "name")
_REMOVE_SCHEDULE = "delete from schedule where name = ?"  # by the primary key

_SCHEDULES = """
    select body, type
    from schedule
    where name > ?
    order by name
"""  # by the primary key

_DUE_SCHEDULES = """
    select body
    from schedule indexed by schedule_due
    where next_at <= ?1
      and (next_at, name) > (?2, ?3)
    order by next_at, name
    limit ?4
"""

_NEXT_DUE = """
    select next_at
    from schedule indexed by schedule_due
    where next_at > ?
    order by next_at
    limit 1
"""

_decode_schedule = msgspec.json.Decoder(Schedule).decode


class SqliteSchedules:
    """The schedules that a transaction has read, with their changes."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection
        self._known: dict[str, Schedule] = {}
        self._changed: set[str] = set()
        transaction.before_commit.append(self.flush)

    def get(self, name: str) -> Schedule | None:
        if name not in self._known and (body := self._connection.execute(_SCHEDULE, (name,)).get) is not None:
            self._known[name] = _decode_schedule(body)
        return self._known.get(name)

    def put(self, schedule: Schedule) -> None:
        self._known[schedule.name] = schedule
        self._changed.add(schedule.name)

    def remove(self, name: str) -> bool:
        self.flush()
        self._known.pop(name, None)
        self._connection.execute(_REMOVE_SCHEDULE, (name,))
        return self._connection.changes() > 0

    def flush(self) -> None:
        """Write the changed schedules."""
        if self._changed:
            self._connection.executemany(_PUT_SCHEDULE, [_schedule_row(self._known[name]) for name in self._changed])
            self._changed.clear()


def list_schedules(connection: apsw.Connection, query: ListSchedules) -> list[Schedule]:
    if query.name is not None:
        found: Iterable[rows.Row] = connection.execute(_SCHEDULE, (query.name,))
        return [schedule for (body,) in found if query.admits(schedule := _decode_schedule(body))][: query.limit]
    listed: list[Schedule] = []
    for body, type in connection.execute(_SCHEDULES, (query.after,)):
        if len(listed) == query.limit:
            break
        if query.type is None or matches_type(type, query.type):
            listed.append(_decode_schedule(body))
    return listed


def due_schedules(connection: apsw.Connection, limit: int, after: tuple[Micros, str], now: Micros) -> Due:
    """Return the first due schedules, and the time at which the next schedule becomes due."""
    found = connection.execute(_DUE_SCHEDULES, (now, *after, limit))
    schedules = tuple(_decode_schedule(body) for (body,) in found)
    return Due(schedules=schedules, next_at=connection.execute(_NEXT_DUE, (now,)).get, now=now)


def _schedule_row(schedule: Schedule) -> rows.Row:
    return schedule.name, schedule.type, schedule.next_at, rows.json_of(schedule)


# Workers

_BEAT = rows.upsert("worker", rows.WORKER_COLUMNS, "id", kept="started_at")
_REMOVE_WORKER = "delete from worker where id = ?"  # by the primary key


class SqliteWorkers:
    """The registered workers."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection

    def beat(self, worker: WorkerRecord, now: Micros) -> None:
        self._connection.execute(_BEAT, rows.worker_row(replace(worker, started_at=now, heartbeat_at=now)))

    def remove(self, worker_id: str) -> None:
        self._connection.execute(_REMOVE_WORKER, (worker_id,))


# Dead letters

_LETTER_COLUMNS = rows.listed(DeadLetter)
_NEW_LETTER = [field for field in DeadLetter.__struct_fields__ if field != "number"]

_ADD_LETTER = rows.insertion("letter", rows.listed(DeadLetter, _NEW_LETTER))

_LETTERS_OF_TOPIC = f"""
    select {_LETTER_COLUMNS}
    from letter indexed by letter_topic
    where topic = ?
      and number > ?
    order by number
    limit ?
"""

_LETTERS_OF_FAMILY = f"""
    select {_LETTER_COLUMNS}
    from letter
    where number > ?2
      and substr(ifnull(topic, ''), 1, length(?1)) = ?1
    order by number
    limit ?3
"""  # by the primary key

_LETTER = f"select {_LETTER_COLUMNS} from letter where number = ?"  # by the primary key
_REMOVE_LETTER = "delete from letter where number = ?"  # by the primary key

_letter_of = rows.reader(DeadLetter, what="dead letter {number}")
_letter_row = rows.writer(DeadLetter, _NEW_LETTER)


class SqliteDeadLetters:
    """Dead letters: messages and events that could not be delivered."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection

    def add(self, letter: DeadLetter) -> None:
        self._connection.execute(_ADD_LETTER, _letter_row(letter))

    def get(self, number: int) -> DeadLetter | None:
        found = self._connection.execute(_LETTER, (number,)).fetchall()
        return _letter_of(found[0]) if found else None

    def remove(self, number: int) -> bool:
        self._connection.execute(_REMOVE_LETTER, (number,))
        return self._connection.changes() > 0


def list_letters(connection: apsw.Connection, query: ListDeadLetters) -> list[DeadLetter]:
    after, limit = query.after, query.limit
    if query.topic is None or query.topic.endswith(FAMILY):
        prefix = "" if query.topic is None else query.topic.removesuffix(FAMILY)
        found = connection.execute(_LETTERS_OF_FAMILY, (prefix, after, limit))
    else:
        found = connection.execute(_LETTERS_OF_TOPIC, (query.topic, after, limit))
    return list(map(_letter_of, found))


# Imports

_ORIGIN = "select value from meta where name = ?"  # by the primary key
_KEEP_ORIGIN = rows.upsert("meta", "name, value", "name")

_decode_origin = msgspec.json.Decoder(Origin).decode


class SqliteOrigins:
    """The progress of imports, by the id of the export."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection

    def get(self, export_id: str) -> Origin | None:
        found = self._connection.execute(_ORIGIN, (f"origin {export_id}",)).get
        return None if found is None else _decode_origin(found)

    def put(self, export_id: str, origin: Origin) -> None:
        self._connection.execute(_KEEP_ORIGIN, (f"origin {export_id}", rows.json_of(origin)))
