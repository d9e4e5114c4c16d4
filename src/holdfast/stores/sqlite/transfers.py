"""Transfers: export runs and events to another store, and remember how far an import has got."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import apsw

from holdfast.core import transfer
from holdfast.core.errors import Unreadable
from holdfast.core.model import Schedule
from holdfast.core.transfer import Dump, KeptEvent, Restoration, Restored
from holdfast.stores.operations import schedules, transfers
from holdfast.stores.sqlite import events, histories, reads, rows

if TYPE_CHECKING:
    from holdfast.stores.sqlite.readers import Readers
    from holdfast.stores.sqlite.writer import Writer

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

_RECEIPTS = "select message_id, at from receipt where run_id = ?"  # by the primary key
_REPLIES = "select message_id, payload, at from reply where run_id = ?"  # by the primary key

_KEPT_EVENTS = """
    select number, topic, id, payload, at, reached, state = 'pending'
    from event
    where number > ?
      and state in ('open', 'pending')
    order by number
    limit ?
"""  # by the primary key

_event_of = rows.reader(KeptEvent, what="event {number}")


class SqliteTransfer:
    """The capability `Transfer` of `SqliteStore`."""

    def __init__(self, writer: Callable[[], Writer], readers: Callable[[], Readers]) -> None:
        self._writer = writer
        self._readers = readers

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        def read(connection: apsw.Connection) -> Sequence[Dump]:
            with reads.readable("a run"):
                return dump(connection, run_ids)

        return await self._readers().run(read)

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        def read(connection: apsw.Connection) -> Sequence[KeptEvent]:
            return [_event_of(row) for row in connection.execute(_KEPT_EVENTS, (after, limit))]

        return await self._readers().run(read)

    async def last_event(self) -> int:
        return await self._readers().run(events.last_event)

    async def restore(self, restoration: Restoration) -> Restored:
        return await self._writer().run(lambda unit: transfers.restore(unit, restoration, unit.now()))

    async def restore_schedules(self, wanted: Sequence[Schedule]) -> int:
        return await self._writer().run(lambda unit: schedules.restore(unit, wanted))


def dump(connection: apsw.Connection, run_ids: Sequence[str]) -> list[Dump]:
    """Return the runs that are at rest, with all their rows. Call it in one transaction."""
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
            audit=histories.facts(connection, details.run.id),
        )
        for details in found
        if transfer.is_at_rest(details.run)
    ]
