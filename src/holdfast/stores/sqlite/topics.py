"""Topics: the rules that were set for them."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from holdfast.core.model import Topic
from holdfast.core.topics import FAMILY
from holdfast.stores.sqlite.desk import Desk

_TOPICS = """
    select name, mode, retention, max_pending
    from topic
    order by name
"""  # all of them: there are few

_PUT = """
    insert into topic (name, mode, retention, max_pending)
    values (?, ?, ?, ?)
    on conflict (name) do update
    set mode = excluded.mode, retention = excluded.retention, max_pending = excluded.max_pending
"""

# No name has the last character there is, which is not printable.
_RECONSIDER = """
    update event
    set expires_at = null
    where topic >= ?1
      and topic <= ?2
      and state in ('open', 'pending')
"""  # event_topic

_LAST_CHARACTER = chr(0x10FFFF)


def put(desk: Desk, topics: Sequence[Topic]) -> None:
    """Set the rules for topics. The pruner looks at their events again."""
    for topic in topics:
        desk.connection.execute(_PUT, (topic.name, topic.mode, topic.retention, topic.max_pending))
        is_family = topic.name.endswith(FAMILY)
        first = topic.name.removesuffix(FAMILY)
        desk.connection.execute(_RECONSIDER, (first, first + _LAST_CHARACTER if is_family else first))
    desk.topics = None


def known(desk: Desk) -> dict[str, Topic]:
    """The rules there are, read once in a transaction."""
    if desk.topics is None:
        desk.topics = {topic.name: topic for topic in list_topics(desk.connection)}
    return desk.topics


def list_topics(connection: apsw.Connection) -> list[Topic]:
    return [
        Topic(name=name, mode=mode, retention=retention, max_pending=max_pending)
        for name, mode, retention, max_pending in connection.execute(_TOPICS)
    ]
