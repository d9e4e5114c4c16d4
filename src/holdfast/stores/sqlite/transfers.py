"""Transfers: runs, events and dead letters leave for another store, or come from one."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core import rules, transfer
from holdfast.core.clock import Micros
from holdfast.core.errors import Unreadable
from holdfast.core.model import DeadLetter
from holdfast.core.transfer import Dump, Fate, KeptEvent, Origin, Restoration, Restored
from holdfast.stores.sqlite import histories, inboxes, queues, reads, rows
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.rows import Row

_RUNS = f"""
    select {rows.WHOLE_RUN}
    from json_each(?) as wanted
    join run on run.id = wanted.value
    join intent on intent.run_id = run.id
    order by wanted.id
"""  # by the primary keys

_INBOX = f"""
    select {rows.ARRIVAL_COLUMNS}
    from inbox
    where run_id = ?
    order by number
"""  # by the primary key

_RECEIPTS = """
    select message_id, at
    from receipt
    where run_id = ?
"""  # by the primary key

_REPLIES = """
    select message_id, payload, at
    from reply
    where run_id = ?
"""  # by the primary key

_KEPT_EVENTS = """
    select number, topic, id, payload, at, reached, state = 'pending'
    from event
    where number > ?
      and state in ('open', 'pending')
    order by number
    limit ?
"""  # by the primary key

_LAST_EVENT = """
    select seq
    from sqlite_sequence
    where name = 'event'
"""

_LATEST_AT = """
    select at
    from event
    where number = (select max(number) from event)
"""  # by the primary key, twice

# SQLite keeps one row for the table, once it has had a row itself.
_RAISE = """
    update sqlite_sequence
    set seq = max(seq, ?)
    where name = 'event'
"""

_BEGIN = """
    insert into sqlite_sequence (name, seq)
    values ('event', ?)
"""

_ORIGIN = """
    select value
    from meta
    where name = ?
"""  # by the primary key

_KEEP_ORIGIN = """
    insert into meta (name, value)
    values (?, ?)
    on conflict (name) do update
    set value = excluded.value
"""

_ENTRY = f"""
    insert into entry (run_id, {rows.ENTRY_COLUMNS}, token)
    values (?, {rows.placed(rows.ENTRY_COLUMNS)}, ?)
"""

_VALUE = """
    insert into value (run_id, name, value)
    values (?, ?, ?)
"""

_RECEIPT = """
    insert into receipt (run_id, message_id, at)
    values (?, ?, ?)
"""

_REPLY = """
    insert into reply (run_id, message_id, payload, at)
    values (?, ?, ?, ?)
"""

_IS_PUBLISHED = """
    select 1
    from event
    where topic = ?
      and id = ?
"""  # event_once

_KEEP_EVENT = """
    insert into event (number, topic, id, payload, at, reached, state)
    values (?, ?, ?, ?, ?, ?, ?)
    returning number
"""

_REACHED = """
    update event
    set reached = ?
    where number = ?
"""  # by the primary key

_LETTER = """
    insert into letter (id, payload, at, reason, topic, run_id, name)
    values (?, ?, ?, ?, ?, ?, ?)
"""

_decode_origin = msgspec.json.Decoder(Origin).decode


def dump(connection: apsw.Connection, run_ids: Sequence[str]) -> list[Dump]:
    """Those of the runs that are at rest, with all that belongs to them. To be called in one transaction."""
    found = reads.details(connection, reads.raw_or_not(connection, _RUNS, (rows.json_of(run_ids),)))
    for details in found:
        if details.unreadable is not None:
            raise Unreadable(f"run {details.run.id} cannot be read: {details.unreadable}")
    return [
        Dump(
            run=details.run,
            entries=tuple(histories.history(connection, details.run.id)),
            inbox=tuple(map(rows.arrival_of, connection.execute(_INBOX, (details.run.id,)))),
            waits=details.waits,
            values=details.values,
            receipts=dict(connection.execute(_RECEIPTS, (details.run.id,))),
            replies={id: (payload, at) for id, payload, at in connection.execute(_REPLIES, (details.run.id,))},
            audit=reads.audit(connection, details.run.id),
        )
        for details in found
        if transfer.is_at_rest(details.run)
    ]


def kept_events(connection: apsw.Connection, after: int, limit: int) -> list[KeptEvent]:
    """The events that somebody may still get, beyond a number."""
    return [_event_of(row) for row in connection.execute(_KEPT_EVENTS, (after, limit))]


def last_event(connection: apsw.Connection) -> int:
    return connection.execute(_LAST_EVENT).get or 0


def restore(desk: Desk, restoration: Restoration) -> Restored:
    """Write what comes from another store, as far as that was not done before. Raises before it writes."""
    for one in restoration.runs:
        transfer.check_restorable(one)
    now = desk.now()
    desk.flush()
    origin = _origin(desk, restoration.export_id)
    if origin.is_finished:
        return Restored(is_finished=True)
    _raise_numbers(desk, restoration.last_event)
    fates = tuple(_restore_one(desk, one, origin.high) for one in restoration.runs)
    origin, events, skipped = transfer.take_in(
        origin,
        restoration.events,
        is_known=lambda event: desk.one(_IS_PUBLISHED, event.topic, event.id) is not None,
        keep=lambda event: _keep_event(desk, event, now),
    )
    fresh = transfer.fresh_letters(origin, restoration.letters)
    desk.connection.executemany(_LETTER, map(_letter_row, fresh))
    origin = replace(origin, letter=fresh[-1].number if fresh else origin.letter, is_finished=restoration.is_last)
    desk.connection.execute(_KEEP_ORIGIN, (_name_of(restoration.export_id), rows.json_of(origin)))
    return Restored(fates=fates, events=events, skipped=skipped, letters=len(fresh))


def _name_of(export_id: str) -> str:
    return f"origin {export_id}"


def _origin(desk: Desk, export_id: str) -> Origin:
    found = desk.one(_ORIGIN, _name_of(export_id))
    if found is not None:
        return _decode_origin(found[0])
    latest = desk.one(_LATEST_AT)
    since = 0 if latest is None else latest[0]
    return Origin(high=last_event(desk.connection), since=since, at=since)


def _raise_numbers(desk: Desk, last: int) -> None:
    """Have events to come get higher numbers than this."""
    desk.connection.execute(_RAISE, (last,))
    if not desk.connection.changes() and last:
        desk.connection.execute(_BEGIN, (last,))


def _next_number(desk: Desk) -> int:
    number = last_event(desk.connection) + 1
    _raise_numbers(desk, number)
    return number


def _restore_one(desk: Desk, dump: Dump, high: int) -> Fate:
    run_id, key = dump.run.id, dump.run.key
    known = desk.run(run_id)
    if known is not None:
        desk.flush()  # it may have come with this restoration, and its facts have to be found
    facts = () if known is None else reads.audit(desk.connection, run_id)
    holder = None if key is None else reads.find(desk.connection, key)
    fate = transfer.fate(dump, known, facts, holder)
    if fate.outcome == "restored":
        _add(desk, transfer.renumbered(dump, high, lambda: _next_number(desk)))
    return fate


def _add(desk: Desk, dump: Dump) -> None:
    run, insert = dump.run, desk.connection.executemany
    desk.add([run])
    insert(_ENTRY, [rows.entry_row(run.id, run.token, entry) for entry in dump.entries])
    insert(inboxes.ARRIVE, [rows.arrival_row(run.id, arrival) for arrival in dump.inbox])
    insert(_VALUE, [(run.id, name, value) for name, value in dump.values.items()])
    insert(_RECEIPT, [(run.id, message_id, at) for message_id, at in dump.receipts.items()])
    insert(_REPLY, [(run.id, message_id, payload, at) for message_id, (payload, at) in dump.replies.items()])
    desk.wait(run.id, dump.waits)
    for fact in dump.audit:
        desk.note(fact)


def _keep_event(desk: Desk, kept: KeptEvent, now: Micros) -> None:
    state = "pending" if kept.is_queued else "open"
    row = (kept.number or None, kept.topic, kept.id, kept.payload, kept.at, kept.reached, state)
    number = desk.connection.execute(_KEEP_EVENT, row).get
    if kept.is_queued:
        arrival = rules.event_arrival(number, kept.topic, kept.payload, kept.at, is_exclusive=True)
        desk.connection.execute(_REACHED, (int(queues.hand_on(desk, arrival, now)), number))


def _event_of(row: Row) -> KeptEvent:
    number, topic, id, payload, at, reached, is_queued = row
    return KeptEvent(
        number=number, topic=topic, id=id, payload=payload, at=at, reached=reached, is_queued=bool(is_queued)
    )


def _letter_row(letter: DeadLetter) -> Row:
    return letter.id, letter.payload, letter.at, letter.reason, letter.topic, letter.run_id, letter.name
