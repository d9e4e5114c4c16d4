"""Housekeeping: find expired rows without reading the rows that stay.

The pruner looks at an event when it is new, and again when the rules of its topic have changed. It sets the time at
which the event expires, and searches the topic for events beyond its maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.core.clock import Micros
from holdfast.core.model import DeadReason, Run
from holdfast.core.topics import topic_of
from holdfast.stores.operations.unit_of_work import OldEvent, OldRun
from holdfast.stores.sqlite import purging

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_TO_LOOK_AT = """
    select number, topic, at
    from event
    where expires_at is null
    order by number
    limit ?
"""  # event_expiry

_LOOKED_AT = """
    update event
    set expires_at = ?
    where number = ?
"""  # by the primary key

_EXPIRED = """
    select number, topic, state
    from event
    where expires_at <= ?
    order by expires_at
    limit ?
"""  # event_expiry

_GIVE_UP = """
    insert into letter (id, topic, payload, at, reason)
    select id, topic, payload, ?, ?
    from event
    where number = ?
"""  # by the primary key

# The newest event beyond the maximum. It and all events before it go.
_LAST_PENDING_TOO_MANY = """
    select number
    from event indexed by event_pending
    where topic = ?
      and state = 'pending'
    order by number desc
    limit 1 offset ?
"""

_PENDING_TOO_MANY = """
    select number, topic, state
    from event indexed by event_pending
    where topic = ?
      and state = 'pending'
      and number <= ?
    order by number
    limit ?
"""

_LAST_OPEN_TOO_MANY = """
    select number
    from event
    where topic = ?
      and state = 'open'
    order by at desc, number desc
    limit 1 offset ?
"""  # event_topic

_OPEN_TOO_MANY = """
    select number, topic, state
    from event
    where topic = ?
      and state = 'open'
      and number <= ?
    order by at, number
    limit ?
"""  # event_topic

_DROP_RECEIPTS = """
    delete from receipt
    where (run_id, message_id) in (
        select run_id, message_id
        from receipt
        where at <= ?
        order by at
        limit ?
    )
"""  # receipt_age, then the primary key

_DROP_REPLIES = """
    delete from reply
    where (run_id, message_id) in (
        select run_id, message_id
        from reply
        where at <= ?
        order by at
        limit ?
    )
"""  # reply_age, then the primary key


class SqliteHousekeeping:
    """Finds old events, receipts, replies and runs, and removes runs."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._connection = transaction.connection
        self._newest: dict[str, int] = {}

    def expired_events(self, limit: int, now: Micros) -> tuple[Sequence[OldEvent], bool]:
        found = self._transaction.all(_TO_LOOK_AT, limit)
        known = self._transaction.events.topics()
        expiries = [(at + topic_of(topic, known).retention, number) for number, topic, at in found]
        if expiries:
            self._connection.executemany(_LOOKED_AT, expiries)
        self._newest = {topic: number for number, topic, _ in found}
        return [OldEvent(*row) for row in self._transaction.all(_EXPIRED, now, limit)], len(found) == limit

    def surplus_events(self, limit: int) -> Sequence[OldEvent]:
        """Return events beyond the maximum of their topic, for the topics of the last `expired_events` call."""
        surplus: list[OldEvent] = []
        for topic, newest in self._newest.items():
            most = topic_of(topic, self._transaction.events.topics()).max_pending
            for last, too_many in ((_LAST_OPEN_TOO_MANY, _OPEN_TOO_MANY), (_LAST_PENDING_TOO_MANY, _PENDING_TOO_MANY)):
                found = self._transaction.one(last, topic, most)
                if found is not None:
                    left = limit - len(surplus)
                    surplus += [OldEvent(*row) for row in self._transaction.all(too_many, topic, found[0], left)]
            if len(surplus) == limit:
                # There may be more than the limit: mark an event, so that the next call looks at this topic again.
                self._connection.execute(_LOOKED_AT, (None, newest))
        return surplus

    def give_up(self, event: OldEvent, reason: DeadReason, now: Micros) -> None:
        self._connection.execute(_GIVE_UP, (now, reason, event.number))

    def forget_receipts(self, until: Micros, limit: int) -> int:
        self._connection.execute(_DROP_RECEIPTS, (until, limit))
        return self._connection.changes()

    def forget_replies(self, until: Micros, limit: int) -> int:
        self._connection.execute(_DROP_REPLIES, (until, limit))
        return self._connection.changes()

    def ended_runs(self, limit: int, usual: Micros, room: int, now: Micros) -> Sequence[OldRun]:
        self._transaction.flush()  # other operations share this transaction
        return purging.due(self._connection, limit, usual, room, now)

    def defer(self, run: Run) -> None:
        purging.defer(self._connection, run)
        self._transaction.runs.forget([run.id])

    def remove(self, runs: Sequence[Run]) -> None:
        purging.remove(self._connection, runs)
        self._transaction.runs.forget(run.id for run in runs)

    def remove_part(self, run: Run, room: int, now: Micros) -> None:
        purging.remove_part(self._connection, run, room, now)
        self._transaction.runs.forget([run.id])
