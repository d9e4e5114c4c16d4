"""Pruning: removes expired data, a little at a time.

Expired rows are found by their age. Topics with too many events are searched among those that got an event since the
last pruning; a number in `meta` marks how far that one came. A queue event becomes a dead letter only under the lock of
its topic, so that no other transaction hands it to a run. Rows that others have locked are left for the next pruning.

The shared operations decide which ended runs are removed. A run is removed in one transaction with all its rows. A run
with more rows than one batch may remove is hidden first, so that it cannot be reopened, and then removed batch by
batch. Only one pruner of a store removes runs at a time.
"""

# ruff: noqa: S608 - statements are built from constants; values of users are always bound

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import groupby
from typing import Any, Self, cast

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition, removable
from holdfast.core.model import EVENT_RETENTION, RECEIPT_RETENTION, DeadReason, Entry, Run
from holdfast.core.ports import Pruned
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.topics import REPLY_RETENTION, TAKEN_RETENTION, topic_of
from holdfast.stores.operations import pruning as operations
from holdfast.stores.operations.unit_of_work import OldRun, UnitOfWork
from holdfast.stores.postgres import topics
from holdfast.stores.postgres.scripts import Connection, qualified
from holdfast.stores.postgres.unreadable import FAILURES

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
              and at <= %(now)s - {schema}.retention_v1(events.topic)
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

# All events of a topic up to the newest one that exceeds its limit.
_TOO_MANY_IN_STATE = """
        (
            select number, topic, state
            from {{schema}}.events
            where topic = looked_at.topic
              and state = '{state}'
              and number <= (
                  select number
                  from {{schema}}.events
                  where topic = looked_at.topic
                    and state = '{state}'
                  order by number desc
                  offset looked_at.kept
                  limit 1
              )
            order by number
            limit %(limit)s
        )
"""  # events_open, events_pending

_TOO_MANY = f"""
    select event.number, event.topic, event.state
    from unnest(%(topics)s::text[], %(kept)s::bigint[]) as looked_at (topic, kept)
    cross join lateral (
        {" union all ".join(_TOO_MANY_IN_STATE.format(state=state) for state in ("open", "pending"))}
    ) as event
    order by event.number
    limit %(limit)s
"""

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

_DROP_OLD = """
    delete from {schema}.{table}
    where ctid = any(array(
        select ctid
        from {schema}.{table}
        where at <= %s
        order by at
        limit %s
        for update skip locked
    ))
"""  # receipts_age, replies_age

_DROP_RECEIPTS = _DROP_OLD.replace("{table}", "receipts")
_DROP_REPLIES = _DROP_OLD.replace("{table}", "replies")

# Ended runs

_MANY = ("entries", "audits", "receipts", "replies", "run_values")
"""Tables in which a run may have many rows."""
_PARTS = (*_MANY, "inbox", "waits")
"""All tables with rows of runs."""

# A batch touches a hundred scattered rows. Postgres would read a table of a few thousand rows from end to end for it.
_PLANNING = """
    select set_config('enable_seqscan', 'off', true),
        set_config('enable_hashjoin', 'off', true),
        set_config('enable_mergejoin', 'off', true)
"""

# The number of rows of a run. Counting stops once the room is exceeded.
_SIZE = " + ".join(
    f"(select count(*) from (select from {{schema}}.{table} where run_id = run.id limit %(room)s + 1) as few)"
    for table in _MANY
)  # by the primary keys, and audits_run

# The entry of the parent that started the run says whether the parent awaits it.
_ABOUT = f"""
    select row_to_json(run)::text, row_to_json(entry)::text, {_SIZE}
    from {{schema}}.runs_read as run
    left join {{schema}}.entries_read as entry
        on entry.run_id = run.parent_id and entry.location = run.parent_location
    where run.id = any(%(ids)s::text[])
"""  # by the primary keys

_TYPES = """
    with recursive ended (type) as (
        (
            select type
            from {schema}.runs
            where finished_at is not null
              and purge_at is null
            order by type
            limit 1
        )
        union all
        select (
            select runs.type
            from {schema}.runs
            where runs.finished_at is not null
              and runs.purge_at is null
              and runs.type > ended.type
            order by runs.type
            limit 1
        )
        from ended
        where ended.type is not null
    )
    select type
    from ended
    where type is not null
"""  # runs_ended, from one type to the next

_RETENTIONS = """
    select name, retention
    from {schema}.types
    where retention is not null
"""  # all of them: there are few types

# First the runs with a purge time of their own, then the others by their end. So runs that were made together are
# removed together, and their rows are on the same pages.
_DUE = """
    select id
    from (
        (
            select 0 as turn, purge_at as at, id
            from {schema}.runs
            where purge_at <= %(now)s
            order by purge_at, id
            limit %(limit)s
        )
        union all
        (
            select 1, due.finished_at, due.id
            from unnest(%(types)s::text[], %(until)s::bigint[]) as ended (type, until)
            cross join lateral (
                select runs.finished_at, runs.id
                from {schema}.runs
                where runs.type = ended.type
                  and runs.finished_at <= ended.until
                  and runs.finished_at is not null
                  and runs.purge_at is null
                order by runs.finished_at, runs.id
                limit %(limit)s
            ) as due
            order by due.finished_at, due.id
            limit %(limit)s
        )
    ) as due
    order by turn, at, id
    limit %(limit)s
"""  # runs_purge, runs_ended

# A run that was reopened meanwhile has another token.
_LOCK = """
    select run.id
    from unnest(%(ids)s::text[], %(tokens)s::bigint[]) as chosen (id, token)
    join {schema}.runs as run on run.id = chosen.id and run.token = chosen.token
    where run.finished_at is not null
    for update of run skip locked
"""  # by the primary key

_DEFER = """
    update {schema}.runs
    set purge_at = %s
    where id = any(%s::text[])
"""  # by the primary key

_HIDE = """
    update {schema}.runs
    set deleted_at = coalesce(deleted_at, %(now)s),
        purge_at = %(now)s,
        key = null
    where id = %(id)s
"""  # by the primary key

# The runs and all their rows: by the primary keys, and audits_run.
_OF_RUNS = "of_{table} as (delete from {{schema}}.{table} where run_id = any(%(ids)s::text[]))"
_DROP = f"""
    with {", ".join(_OF_RUNS.format(table=table) for table in _PARTS)}
    delete from {{schema}}.runs
    where id = any(%(ids)s::text[])
"""

# Some rows of a run that has many.
_DROPS_SOME = tuple(
    f"delete from {{schema}}.{table} where ctid = any(array("
    f"select ctid from {{schema}}.{table} where run_id = %s limit %s))"
    for table in _MANY
)

# Flows

_SUPERSEDED = """
    select row_to_json(flow)::text
    from (
        select type, version, registered_at, used_at
        from {schema}.flows
        where type in (select type from {schema}.flows group by type having count(*) > 1)
        order by type, registered_at
    ) as flow
"""  # all of them: there are few

_OLDEST_RUN = """
    select created_at
    from {schema}.runs
    where type = %s
    order by created_at
    limit 1
"""  # runs_listed

# A fork that was made meanwhile has changed `used_at`.
_REMOVE_FLOW = """
    delete from {schema}.flows
    where type = %s
      and registered_at = %s
      and used_at = %s
"""  # by the primary key

_COUNTED_AT_ONCE = 1_000
"""Number of runs that a dry run reads at once."""

_run = msgspec.json.Decoder(Run)
_entry = msgspec.json.Decoder(Entry)
_flow = msgspec.json.Decoder(FlowDefinition)

_Found = Sequence[tuple[int, str, str]]
"""Events: number, topic, state."""


def prune(
    connection: Connection,
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
            removed = _prune_flows(connection, schema, limit, retention, now)
        return replace(pruned, runs=_Runs(connection, schema).count(retention, now), flows=removed)
    runs, has_more = _purge(connection, schema, limit, retention, now)
    with connection.transaction():
        removed = _prune_flows(connection, schema, limit, retention, now)
    return replace(pruned, runs=runs, flows=removed, has_more=pruned.has_more or has_more or removed == limit)


class _Rows:
    """The rows of a schema, on one connection."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    def _all(self, statement: str, values: Any = None) -> list[Any]:
        return self._connection.execute(qualified(statement, self._schema), values).fetchall()

    def _do(self, statement: str, values: Any) -> int:
        return self._connection.execute(qualified(statement, self._schema), values).rowcount


class _Pruning(_Rows):
    """One pruning, with the counts of what it has removed so far."""

    def __init__(self, connection: Connection, schema: str, limit: int, now: Micros, *, is_dry_run: bool) -> None:
        super().__init__(connection, schema)
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
            self._do(_SET_LOOKED_AT, (str(until),))

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
        forgotten = self._do(statement, (until, self._limit))
        self._has_more = self._has_more or forgotten == self._limit
        return forgotten


def _purge(connection: Connection, schema: str, limit: int, usual: Micros, now: Micros) -> tuple[dict[str, int], bool]:
    """Remove the first ended runs that are due. Return their number by type, and True if more are due.

    `usual` is the retention of runs whose type has none.
    """
    with connection.transaction():
        if not topics.try_turn(connection, schema, topics.PURGING):
            return {}, False  # the pruner that has the turn goes on until nothing is left
        connection.execute(_PLANNING)
        runs = _Runs(connection, schema)
        gone, has_more = operations.purge(cast("UnitOfWork", runs), limit, usual, now)
        runs.write_deferred()
    return gone, has_more or runs.has_more


class _Runs(_Rows):
    """Ended runs. To the shared operation it is the part of a unit of work that it needs."""

    def __init__(self, connection: Connection, schema: str) -> None:
        super().__init__(connection, schema)
        self._deferred: defaultdict[Micros | None, list[str]] = defaultdict(list)
        self.has_more = False

    @property
    def housekeeping(self) -> Self:
        return self

    def ended_runs(self, limit: int, usual: Micros, room: int, now: Micros) -> list[OldRun]:
        """Return those of the first due runs that are unchanged and that no other transaction has locked."""
        ids, kept = self._due(limit, usual, now)
        found = list(self._about(ids, room, kept)) if ids else []
        locked = self._locked([one.run for one in found])
        # If others have locked all of them, the pruner should come back later and not at once.
        self.has_more = bool(locked) and len(ids) == limit
        return [one for one in found if one.run.id in locked]

    def count(self, usual: Micros, now: Micros) -> dict[str, int]:
        """Return the number of all runs that are due, by type."""
        ids, kept = self._due(None, usual, now)
        parts = (ids[start : start + _COUNTED_AT_ONCE] for start in range(0, len(ids), _COUNTED_AT_ONCE))
        return operations.count_due((one for some in parts for one in self._about(some, 0, kept)), now)

    def defer(self, run: Run) -> None:
        self._deferred[run.purge_at].append(run.id)

    def write_deferred(self) -> None:
        """Write the times at which runs are checked again, those with one time together."""
        for purge_at, ids in self._deferred.items():
            self._do(_DEFER, (purge_at, ids))

    def remove(self, runs: Sequence[Run]) -> None:
        if runs:
            self._do(_DROP, {"ids": sorted(run.id for run in runs)})

    def remove_part(self, run: Run, room: int, now: Micros) -> None:
        self._do(_HIDE, {"now": now, "id": run.id})
        for statement in _DROPS_SOME:
            if room > 0:
                room -= self._do(statement, (run.id, room))

    def _due(self, limit: int | None, usual: Micros, now: Micros) -> tuple[list[str], dict[str, Micros]]:
        """Return the ids of the first runs that may be due, and the retention of each type."""
        kept = defaultdict(lambda: usual, self._all(_RETENTIONS))
        types = [type for (type,) in self._all(_TYPES)]
        values = {"types": types, "until": [now - kept[type] for type in types], "now": now, "limit": limit}
        return [id for (id,) in self._all(_DUE, values)], kept

    def _about(self, ids: Sequence[str], room: int, kept: dict[str, Micros]) -> Iterator[OldRun]:
        found = {}
        for text, recorded, size in self._all(_ABOUT, {"ids": ids, "room": room}):
            with suppress(*FAILURES):  # a run that cannot be decoded stays
                run = _run.decode(text)
                found[run.id] = OldRun(run, kept[run.type], _is_kept_for_parent(recorded, run), size)
        return (found[id] for id in ids if id in found)

    def _locked(self, runs: Sequence[Run]) -> set[str]:
        values = {"ids": [run.id for run in runs], "tokens": [run.token for run in runs]}
        return {id for (id,) in self._all(_LOCK, values)}


def _is_kept_for_parent(recorded: str | None, run: Run) -> bool:
    try:
        return recorded is not None and rules.is_kept_for_parent(_entry.decode(recorded), run)
    except FAILURES:  # it is checked again later
        return True


def _prune_flows(connection: Connection, schema: str, limit: int, retention: Micros, now: Micros) -> int:
    """Remove registrations that no run needs, at most `limit`. Return how many."""
    count = 0
    found = [_flow.decode(text) for (text,) in connection.execute(qualified(_SUPERSEDED, schema)).fetchall()]
    for type, registrations in groupby(found, lambda one: one.type):
        row = connection.execute(qualified(_OLDEST_RUN, schema), (type,)).fetchone()
        old = removable(list(registrations), None if row is None else row[0], retention, now)
        for one in old[: limit - count]:
            values = (one.type, one.registered_at, one.used_at)
            count += connection.execute(qualified(_REMOVE_FLOW, schema), values).rowcount
    return count
