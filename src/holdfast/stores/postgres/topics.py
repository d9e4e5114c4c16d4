"""Topics: their rules and their advisory locks. Also the locks for work that only one process may do at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from holdfast.core.model import Topic
from holdfast.stores.postgres.scripts import Connection, Script, qualified

BUCKETS = 65_536
"""Number of advisory locks for all topics. The limit keeps one transaction from filling the server's lock table."""

MAKING, PRUNING, REQUESTING, SCHEDULING, PURGING, RESTORING = -1, -2, -3, -4, -5, -6
"""Turns: locks for making the schema, pruning, requests, schedules, purging and restoring. One session has each."""

_TOPICS = """
    select row_to_json(topics)::text
    from {schema}.topics
    order by name
"""  # all of them: there are few

_PUT = """
    insert into {schema}.topics (name, mode, retention, max_pending)
    select name, mode, retention, max_pending
    from json_to_recordset(%s::json) as wanted (name text, mode text, retention bigint, max_pending bigint)
    order by name
    on conflict (name) do update
    set mode = excluded.mode,
        retention = excluded.retention,
        max_pending = excluded.max_pending
"""

_LOOK_AGAIN = """
    delete from {schema}.meta
    where name = 'looked_at'
"""  # see `pruning`

_LOCK = """
    select pg_advisory_xact_lock(%s, wanted.bucket)
    from (
        select unnest(%s::int[]) as bucket
    ) as wanted
"""  # takes the locks in the given order, because no part of the statement reorders the rows

TAKE_TURN = b"select pg_advisory_xact_lock(%s, %s)"

_topic = msgspec.json.Decoder(Topic)


class _Rules(msgspec.Struct, frozen=True):
    """The rules of a topic, without defaults, so that every field is encoded."""

    name: str
    mode: str
    retention: int
    max_pending: int


def classid(schema: str) -> int:
    """The first key of every advisory lock of a schema. All processes compute the same number; others hardly use it."""
    return int.from_bytes(blake2b(f"holdfast {schema}".encode(), digest_size=4).digest(), "big", signed=True)


def bucket(topic: str) -> int:
    """The second key of the advisory lock of a topic."""
    return int.from_bytes(blake2b(topic.encode(), digest_size=4).digest(), "big") % BUCKETS


def lock(connection: Connection, schema: str, topics: Iterable[str]) -> None:
    """Wait for the locks of topics, and hold them until the end of the transaction.

    Take all of them in one call, before any row is locked. Transactions with another order could deadlock.
    """
    buckets = sorted(set(map(bucket, topics)))
    if buckets:
        connection.execute(_LOCK, (classid(schema), buckets))


def take_turn(connection: Connection, schema: str, turn: int) -> None:
    """Wait for a turn, and hold it until the end of the transaction. Take it before any lock of a topic."""
    connection.execute(TAKE_TURN, (classid(schema), turn))


def try_turn(connection: Connection, schema: str, turn: int) -> bool:
    """Take a turn until the end of the transaction. Return False if another session holds it."""
    found = connection.execute("select pg_try_advisory_xact_lock(%s, %s)", (classid(schema), turn)).fetchone()
    return found is not None and bool(found[0])


def put(schema: str, topics: Sequence[Topic]) -> Script[None]:
    """Set the rules of topics. Of several rules for one name the last counts. The pruner then checks all topics."""
    last = {topic.name: topic for topic in topics}
    wanted = [_Rules(one.name, one.mode, one.retention, one.max_pending) for one in last.values()]
    yield TAKE_TURN, (classid(schema), PRUNING)  # or a pruner with the old rules could mark the topics as checked
    yield qualified(_PUT, schema), (msgspec.json.encode(wanted).decode(),)
    yield qualified(_LOOK_AGAIN, schema), ()


def list_topics(connection: Connection, schema: str) -> list[Topic]:
    return [_topic.decode(row[0]) for row in connection.execute(qualified(_TOPICS, schema))]


def known(connection: Connection, schema: str) -> dict[str, Topic]:
    """Return the rules of all topics, by name."""
    return {topic.name: topic for topic in list_topics(connection, schema)}
