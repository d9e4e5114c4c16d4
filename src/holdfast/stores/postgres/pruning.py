"""Pruning: removes expired data, a little at a time.

Expired rows are found by their age. Topics with too many events are searched among those that got an event since the
last pruning; a number in `meta` marks how far that one came. A queue event becomes a dead letter only under the lock of
its topic, so that no other transaction hands it to a run. Rows that others have locked are left for the next pruning.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import psycopg
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.model import EVENT_RETENTION, RECEIPT_RETENTION, DeadReason
from holdfast.core.ports import Pruned
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.topics import REPLY_RETENTION, TAKEN_RETENTION, topic_of
from holdfast.stores.postgres import flows, purging, topics
from holdfast.stores.postgres.sql import qualified

LOOK_AHEAD = 100_000
"""Maximum number of events whose topics one pruning checks."""

_LOOK_BACK = 1_000
"""Number of events that are checked again, because events are not committed in the order of their numbers."""

_NOW = """
    select {schema}.micros(clock_timestamp())
"""

_EXPIRED = """
    select number, topic, state
    from (
        (
            select number, topic, state
            from {schema}.events
            where state in ('open', 'pending')
              and at <= %(now)s - %(shortest)s
              and at <= %(now)s - coalesce(
                  (
                      select rules.retention
                      from {schema}.topics as rules
                      where rules.name = events.topic
                  ),
                  (
                      select rules.retention
                      from {schema}.topics as rules
                      where right(rules.name, 1) = '*'
                        and starts_with(events.topic, left(rules.name, -1))
                      order by length(rules.name) desc
                      limit 1
                  ),
                  %(usual)s
              )
            order by at, number
            limit %(limit)s
        )
        union all
        (
            select number, topic, state
            from {schema}.events
            where state = 'taken'
              and taken_at <= %(taken_until)s
            order by taken_at, number
            limit %(limit)s
        )
    ) as expired
    order by number
    limit %(limit)s
"""  # events_age, events_taken

_LOOKED_AT = """
    select coalesce((select value::bigint from {schema}.meta where name = 'looked_at'), 0),
        coalesce((select max(number) from {schema}.events), 0)
"""  # by the primary keys

_SET_LOOKED_AT = """
    insert into {schema}.meta (name, value)
    values ('looked_at', %s)
    on conflict (name) do update
    set value = excluded.value
"""

# Pending events may come back from runs that did not take them, so all topics with pending events are checked.
_TO_LOOK_AT = """
    with recursive waiting as (
        (
            select topic
            from {schema}.events
            where state = 'pending'
            order by topic
            limit 1
        )
        union all
        select (
            select events.topic
            from {schema}.events
            where events.state = 'pending'
              and events.topic > waiting.topic
            order by events.topic
            limit 1
        )
        from waiting
        where waiting.topic is not null
    )
    select topic
    from waiting
    where topic is not null
    union
    select topic
    from {schema}.events
    where number > %s
      and number <= %s
"""  # events_pending, the primary key

# All events up to the newest one that exceeds the limit of its topic.
_TOO_MANY = """
    select event.number, event.topic, event.state
    from unnest(%(topics)s::text[], %(kept)s::bigint[]) as looked_at (topic, kept)
    cross join lateral (
        (
            select number, topic, state
            from {schema}.events
            where topic = looked_at.topic
              and state = 'open'
              and number <= (
                  select number
                  from {schema}.events
                  where topic = looked_at.topic
                    and state = 'open'
                  order by number desc
                  offset looked_at.kept
                  limit 1
              )
            order by number
            limit %(limit)s
        )
        union all
        (
            select number, topic, state
            from {schema}.events
            where topic = looked_at.topic
              and state = 'pending'
              and number <= (
                  select number
                  from {schema}.events
                  where topic = looked_at.topic
                    and state = 'pending'
                  order by number desc
                  offset looked_at.kept
                  limit 1
              )
            order by number
            limit %(limit)s
        )
    ) as event
    order by event.number
    limit %(limit)s
"""  # events_open, events_pending

_REMOVE = """
    with chosen as (
        select events.number
        from unnest(%(numbers)s::bigint[], %(states)s::text[]) as found (number, state)
        join {schema}.events on events.number = found.number and events.state = found.state
        for update of events skip locked
    ),
    gone as (
        delete from {schema}.events
        using chosen
        where events.number = chosen.number
        returning events.number, events.topic, events.id, events.payload, events.state
    ),
    given_up as (
        insert into {schema}.letters (id, topic, payload, at, reason)
        select id, topic, payload, %(now)s, %(reason)s
        from gone
        where state = 'pending' and not %(is_dry_run)s
        order by number
    )
    select state, count(*)
    from gone
    group by state
"""  # by the primary key

_DROP_RECEIPTS = """
    delete from {schema}.receipts
    where ctid = any(array(
        select ctid
        from {schema}.receipts
        where at <= %s
        order by at
        limit %s
        for update skip locked
    ))
"""  # receipts_age

_DROP_REPLIES = """
    delete from {schema}.replies
    where ctid = any(array(
        select ctid
        from {schema}.replies
        where at <= %s
        order by at
        limit %s
        for update skip locked
    ))
"""  # replies_age

_Found = Sequence[tuple[int, str, str]]
"""Events: number, topic, state."""


def prune(
    connection: psycopg.Connection[Any],
    schema: str,
    limit: int,
    now: Micros | None = None,
    *,
    retention: Micros = RUN_RETENTION,
    is_dry_run: bool,
) -> Pruned:
    """Remove at most `limit` rows of each kind; a dry run only counts. Without a time, the server's clock counts."""
    if now is None:
        ((now,),) = connection.execute(qualified(_NOW, schema)).fetchall()
        assert now is not None
    with connection.transaction(force_rollback=True) if is_dry_run else nullcontext():
        pruned = _Pruning(connection, schema, limit, now, is_dry_run=is_dry_run).done()
    if is_dry_run:
        with connection.transaction(force_rollback=True):
            removed = flows.prune(connection, schema, limit, retention, now)
        return replace(pruned, runs=purging.count(connection, schema, retention, now), flows=removed)
    runs, has_more = purging.purge(connection, schema, limit, retention, now)
    with connection.transaction():
        removed = flows.prune(connection, schema, limit, retention, now)
    return replace(pruned, runs=runs, flows=removed, has_more=pruned.has_more or has_more or removed == limit)


class _Pruning:
    """One pruning, with the counts of what it has removed so far."""

    def __init__(
        self, connection: psycopg.Connection[Any], schema: str, limit: int, now: Micros, *, is_dry_run: bool
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._limit = limit
        self._left = limit
        self._now = now
        # A dry run is rolled back, so it needs no locks of topics. It must not take them either: both removals are in
        # one transaction, and locks that are taken in two steps can deadlock.
        self._is_dry_run = is_dry_run
        self._removed = {"open": 0, "pending": 0, "taken": 0}
        self._has_more = False

    def done(self) -> Pruned:
        """Prune, and return the counts."""
        with self._connection.transaction():
            self._remove(self._expired(), "expired")
        with self._connection.transaction():
            self._drop_overflow()
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

    def _expired(self) -> _Found:
        known = topics.list_topics(self._connection, self._schema)
        values = {
            "now": self._now,
            "shortest": min([EVENT_RETENTION, *(topic.retention for topic in known)]),
            "usual": EVENT_RETENTION,
            "taken_until": self._now - TAKEN_RETENTION,
            "limit": self._left,
        }
        return self._all(_EXPIRED, values)

    def _drop_overflow(self) -> None:
        """Remove events above the limit of their topic, in topics that got events since they were checked."""
        if self._left == 0:
            return
        if not self._is_dry_run:
            topics.take_turn(self._connection, self._schema, topics.PRUNING)
        ((looked_at, newest),) = self._all(_LOOKED_AT)
        until = newest if self._is_dry_run else min(looked_at + LOOK_AHEAD, newest)
        chosen = self._too_many(looked_at, until)
        removed = self._remove(chosen, "overflow")
        self._has_more = until < newest
        if self._left and removed == len(chosen) and until > looked_at:
            self._connection.execute(qualified(_SET_LOOKED_AT, self._schema), (str(until),))

    def _too_many(self, looked_at: int, until: int) -> _Found:
        known = topics.known(self._connection, self._schema)
        found = [name for (name,) in self._all(_TO_LOOK_AT, (looked_at - _LOOK_BACK, until))]
        kept = [topic_of(name, known).max_pending for name in found]
        return self._all(_TOO_MANY, {"topics": found, "kept": kept, "limit": self._left}) if found else ()

    def _remove(self, chosen: _Found, reason: DeadReason) -> int:
        """Remove events and return their number. Pending ones become dead letters, the oldest first."""
        if not chosen:
            return 0
        if not self._is_dry_run:
            topics.lock(self._connection, self._schema, {topic for _, topic, state in chosen if state == "pending"})
        values = {
            "numbers": [number for number, _, _ in chosen],
            "states": [state for _, _, state in chosen],
            "now": self._now,
            "reason": reason,
            "is_dry_run": self._is_dry_run,  # a rollback would not give back the numbers of letters
        }
        removed: dict[str, int] = dict(self._all(_REMOVE, values))
        for state, count in removed.items():
            self._removed[state] += count
            self._left -= count
        return sum(removed.values())

    def _forget(self, statement: str, until: Micros) -> int:
        forgotten = self._connection.execute(qualified(statement, self._schema), (until, self._limit)).rowcount
        self._has_more = self._has_more or forgotten == self._limit
        return forgotten

    def _all(self, statement: str, values: Any = None) -> list[Any]:
        return self._connection.execute(qualified(statement, self._schema), values).fetchall()
