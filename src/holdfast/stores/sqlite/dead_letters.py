"""Dead letters as rows."""

# ruff: noqa: S608 - statements are built from constants in this package; user input is always bound

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from holdfast.core.model import DeadLetter
from holdfast.core.questions import ListDeadLetters
from holdfast.core.topics import FAMILY
from holdfast.stores.sqlite import rows

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_COLUMNS = rows.listed(DeadLetter)
_NEW = [field for field in DeadLetter.__struct_fields__ if field != "number"]

_ADD = f"""
    insert into letter ({rows.listed(DeadLetter, _NEW)})
    values ({rows.placed(rows.listed(DeadLetter, _NEW))})
"""

_ALL = f"""
    select {_COLUMNS}
    from letter
    where number > ?
    order by number
    limit ?
"""  # by the primary key

_OF_TOPIC = f"""
    select {_COLUMNS}
    from letter indexed by letter_topic
    where topic = ?
      and number > ?
    order by number
    limit ?
"""

_OF_FAMILY = f"""
    select {_COLUMNS}
    from letter
    where number > ?2
      and substr(topic, 1, length(?1)) = ?1
    order by number
    limit ?3
"""  # by the primary key

_ONE = f"""
    select {_COLUMNS}
    from letter
    where number = ?
"""  # by the primary key

_REMOVE = """
    delete from letter
    where number = ?
"""  # by the primary key

_letter_of = rows.reader(DeadLetter, what="dead letter {number}")
_new_row = rows.writer(DeadLetter, _NEW)


class SqliteDeadLetters:
    """Dead letters: messages and events that could not be delivered."""

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection

    def add(self, letter: DeadLetter) -> None:
        self._connection.execute(_ADD, _new_row(letter))

    def get(self, number: int) -> DeadLetter | None:
        found = self._connection.execute(_ONE, (number,)).fetchall()
        return _letter_of(found[0]) if found else None

    def remove(self, number: int) -> bool:
        self._connection.execute(_REMOVE, (number,))
        return self._connection.changes() > 0


def list_letters(connection: apsw.Connection, query: ListDeadLetters) -> list[DeadLetter]:
    after, limit = query.after, query.limit
    if query.topic is None:
        found = connection.execute(_ALL, (after, limit))
    elif query.topic.endswith(FAMILY):
        found = connection.execute(_OF_FAMILY, (query.topic.removesuffix(FAMILY), after, limit))
    else:
        found = connection.execute(_OF_TOPIC, (query.topic, after, limit))
    return list(map(_letter_of, found))
