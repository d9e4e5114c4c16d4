"""Topics: the rules that were set for them, and the lock that each has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import psycopg

from holdfast.core.model import Topic
from holdfast.stores.postgres.scripts import Script
from holdfast.stores.postgres.sql import qualified

BUCKETS = 65_536
"""So many locks there are for all topics: a transaction that holds many must not fill the server's table of locks."""

MAKING, PRUNING, REQUESTING, SCHEDULING, PURGING, RESTORING = -1, -2, -3, -4, -5, -6
"""Locks of those who make the schema, prune, carry out requests, set schedules, purge or restore: one at a time."""

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
"""  # in the order given: there is nothing that could change it

TAKE_TURN = b"select pg_advisory_xact_lock(%s, %s)"

_topic = msgspec.json.Decoder(Topic)


class _Rules(msgspec.Struct, frozen=True):
    """A topic with everything said."""

    name: str
    mode: str
    retention: int
    max_pending: int


def classid(schema: str) -> int:
    """The first half of every advisory lock of a schema: a number the same for all, and hardly anybody else's."""
    return int.from_bytes(blake2b(f"holdfast {schema}".encode(), digest_size=4).digest(), "big", signed=True)


def bucket(topic: str) -> int:
    """The second half: which of the locks of a schema is that of a topic."""
    return int.from_bytes(blake2b(topic.encode(), digest_size=4).digest(), "big") % BUCKETS


def lock(connection: psycopg.Connection[Any], schema: str, topics: Iterable[str]) -> None:
    """Wait for the locks of topics, and keep them until the end of the transaction.

    All at once, and before any row is locked: whoever takes them in another order may wait for ever.
    """
    buckets = sorted(set(map(bucket, topics)))
    if buckets:
        connection.execute(_LOCK, (classid(schema), buckets))


def take_turn(connection: psycopg.Connection[Any], schema: str, turn: int) -> None:
    """Wait for one of the turns, and keep it until the end of the transaction. Before any lock of a topic."""
    connection.execute(TAKE_TURN, (classid(schema), turn))


def try_turn(connection: psycopg.Connection[Any], schema: str, turn: int) -> bool:
    """Take one of the turns, until the end of the transaction, unless somebody else has it."""
    found = connection.execute("select pg_try_advisory_xact_lock(%s, %s)", (classid(schema), turn)).fetchone()
    return found is not None and bool(found[0])


def put(schema: str, topics: Sequence[Topic]) -> Script[None]:
    """Set the rules for topics; of several for one name the last counts. The pruner looks at all topics again."""
    last = {topic.name: topic for topic in topics}
    wanted = [_Rules(one.name, one.mode, one.retention, one.max_pending) for one in last.values()]
    yield TAKE_TURN, (classid(schema), PRUNING)  # or a pruner that read the old rules would say that it looked
    yield qualified(_PUT, schema), (msgspec.json.encode(wanted).decode(),)
    yield qualified(_LOOK_AGAIN, schema), ()


def list_topics(connection: psycopg.Connection[Any], schema: str) -> list[Topic]:
    return [_topic.decode(row[0]) for row in connection.execute(qualified(_TOPICS, schema))]


def known(connection: psycopg.Connection[Any], schema: str) -> dict[str, Topic]:
    """The rules there are, by name."""
    return {topic.name: topic for topic in list_topics(connection, schema)}
