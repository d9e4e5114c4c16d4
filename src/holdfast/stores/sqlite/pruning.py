"""Pruning: what nobody needs any more goes away, a little at a time.

An event is looked at when it is new, and when the rules of its topic have changed: it gets the instant at which it
expires, and its topic is searched for more than it may keep. So a pruning never reads what stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.model import RECEIPT_RETENTION, DeadReason
from holdfast.core.ports import Pruned
from holdfast.core.topics import REPLY_RETENTION, topic_of
from holdfast.stores.sqlite import letters, purging, topics
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.rows import Row

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
    select number, state
    from event
    where expires_at <= ?
    order by expires_at
    limit ?
"""  # event_expiry

_DROP_EVENT = """
    delete from event
    where number = ?
"""  # by the primary key

# The newest one that is too many; it and all before it go.
_LAST_PENDING_TOO_MANY = """
    select number
    from event indexed by event_pending
    where topic = ?
      and state = 'pending'
    order by number desc
    limit 1 offset ?
"""

_PENDING_TOO_MANY = """
    select number, state
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
    select number, state
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


def prune(desk: Desk, limit: int, retention: Micros) -> Pruned:
    """Remove at most `limit` of each kind."""
    now = desk.now()
    pruned = _Pruning(desk, limit, now).done()
    runs, has_more = purging.purge(desk, limit, retention, now)
    return replace(pruned, runs=runs, has_more=pruned.has_more or has_more)


def rehearse(desk: Desk, limit: int) -> Pruned:
    """Only say how much that would be. Runs are not counted: there may be many, and a reader can do that."""
    desk.flush()  # others share this transaction
    desk.connection.execute("savepoint dry_run")
    try:
        return _Pruning(desk, limit, desk.now()).done()
    finally:
        desk.connection.execute("rollback to dry_run")
        desk.connection.execute("release dry_run")


class _Pruning:
    """One pruning, and what it has removed so far."""

    def __init__(self, desk: Desk, limit: int, now: Micros) -> None:
        self._desk = desk
        self._now = now
        self._limit = limit
        self._left = limit
        self._removed = {"open": 0, "pending": 0, "taken": 0}
        self._has_more = False

    def done(self) -> Pruned:
        """Do it, and tell how much it was."""
        looked_at = self._look()
        self._remove(self._desk.all(_EXPIRED, self._now, self._left), "expired")
        for topic, newest in looked_at.items():
            self._drop_overflow(topic, newest)
        receipts = self._forget(_DROP_RECEIPTS, self._now - RECEIPT_RETENTION)
        replies = self._forget(_DROP_REPLIES, self._now - REPLY_RETENTION)
        return Pruned(
            events=self._removed["open"],
            dead_letters=self._removed["pending"],
            taken=self._removed["taken"],
            receipts=receipts,
            replies=replies,
            has_more=self._has_more or self._left == 0,
        )

    def _look(self) -> dict[str, int]:
        """Give new events the instant at which they expire; the topics they are of, with the newest of each."""
        desk, known = self._desk, topics.known(self._desk)
        found = desk.all(_TO_LOOK_AT, self._limit)
        self._has_more = len(found) == self._limit
        expiries = [(at + topic_of(topic, known).retention, number) for number, topic, at in found]
        if expiries:
            desk.connection.executemany(_LOOKED_AT, expiries)
        return {topic: number for number, topic, _ in found}

    def _drop_overflow(self, topic: str, newest: int) -> None:
        limit = topic_of(topic, topics.known(self._desk)).max_pending
        for last, too_many in ((_LAST_OPEN_TOO_MANY, _OPEN_TOO_MANY), (_LAST_PENDING_TOO_MANY, _PENDING_TOO_MANY)):
            found = self._desk.one(last, topic, limit)
            if found is not None:
                self._remove(self._desk.all(too_many, topic, found[0], self._left), "overflow")
        if self._left == 0:
            # Perhaps not all of them: have this topic looked at again.
            self._desk.connection.execute(_LOOKED_AT, (None, newest))

    def _remove(self, chosen: Sequence[Row], reason: DeadReason) -> None:
        """Remove events; the pending ones become dead letters, the oldest first."""
        self._left -= len(chosen)
        for _, state in chosen:
            self._removed[state] += 1
        gone = [(number,) for number, state in chosen if state != "pending"]
        if gone:
            self._desk.connection.executemany(_DROP_EVENT, gone)
        pending = sorted(number for number, state in chosen if state == "pending")
        letters.give_up_events(self._desk, pending, reason, self._now)

    def _forget(self, statement: str, until: Micros) -> int:
        self._desk.connection.execute(statement, (until, self._limit))
        forgotten = self._desk.connection.changes()
        self._has_more = self._has_more or forgotten == self._limit
        return forgotten
