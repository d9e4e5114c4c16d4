"""Inboxes: arrivals of runs, receipts of messages, and replies. Each change is written immediately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import apsw

from holdfast.core.clock import Micros
from holdfast.core.model import RECEIPT_RETENTION, Arrival, Fence, Run, WaitKind
from holdfast.stores.operations.unit_of_work import Taken
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_ADD = rows.insertion("inbox", f"run_id, {rows.ARRIVAL_COLUMNS}")

_NEWER = f"""
    select {rows.ARRIVAL_COLUMNS}
    from inbox
    where run_id = ?
      and number > ?
    order by number
"""  # by the primary key

_TAKE = """
    delete from inbox
    where run_id = ?
      and number = ?
    returning kind, name, ref, is_exclusive
"""  # by the primary key

_CLEAR = "delete from inbox where run_id = ?"  # by the primary key
_KEEP_MESSAGES = "delete from inbox where run_id = ? and kind != 'message'"  # by the primary key

_MESSAGES = f"""
    select {rows.ARRIVAL_COLUMNS}
    from inbox
    where run_id = ?
      and kind = 'message'
    order by number
"""  # by the primary key

_EVENTS = f"""
    select {rows.ARRIVAL_COLUMNS}
    from inbox indexed by inbox_event
    where run_id = ?
      and name = ?
      and kind = 'event'
"""

_EXCLUSIVE = f"""
    select {rows.ARRIVAL_COLUMNS}
    from inbox indexed by inbox_exclusive
    where run_id = ?
      and is_exclusive = 1
    order by number
"""

_IS_KNOWN = """
    select 1
    where exists (select 1 from receipt where run_id = ?1 and message_id = ?2 and at > ?3)
       or exists (select 1 from inbox where run_id = ?1 and ref = ?2 and kind = 'message')
"""  # the primary key of receipt, inbox_message

_KEEP_RECEIPT = rows.upsert("receipt", "run_id, message_id, at", "run_id", "message_id")
_KEEP_REPLY = rows.insertion("reply", "run_id, message_id, payload, at") + " on conflict do nothing"


class SqliteInboxes:
    """Arrivals, receipts and replies, by run."""

    __slots__ = ("_connection",)

    def __init__(self, transaction: Transaction) -> None:
        self._connection = transaction.connection

    def add(self, run_id: str, arrival: Arrival) -> None:
        self._connection.execute(_ADD, rows.arrival_row(run_id, arrival))

    def put(self, run_id: str, arrivals: Sequence[Arrival]) -> None:
        self._connection.executemany(_ADD, [rows.arrival_row(run_id, arrival) for arrival in arrivals])

    def newer(self, run: Run | Fence, seen: int) -> tuple[Arrival, ...]:
        if run.arrivals <= seen:
            return ()
        return tuple(map(rows.arrival_of, self._connection.execute(_NEWER, (run.id, seen))))

    def take(self, run_id: str, number: int) -> Taken | None:
        found: list[Row] = self._connection.execute(_TAKE, (run_id, number)).fetchall()
        return found[0] if found else None

    def clear(self, run: Run) -> None:
        if run.arrivals:
            self._connection.execute(_CLEAR, (run.id,))

    def keep_messages(self, run: Run) -> None:
        if run.arrivals:
            self._connection.execute(_KEEP_MESSAGES, (run.id,))

    def messages(self, run: Run) -> Sequence[Arrival]:
        return self._read(_MESSAGES, run.id)

    def events(self, run: Run, topic: str) -> Sequence[Arrival]:
        return self._read(_EVENTS, run.id, topic)

    def exclusive(self, run: Run) -> Sequence[Arrival]:
        return self._read(_EXCLUSIVE, run.id)

    def has_end_of(self, run: Run, child_id: str) -> bool:
        return any(one.kind is WaitKind.CHILD and one.name == child_id for one in self.newer(run, 0))

    def knows_message(self, run: Run, message_id: str, now: Micros) -> bool:
        return self._connection.execute(_IS_KNOWN, (run.id, message_id, now - RECEIPT_RETENTION)).get is not None

    def keep_receipts(self, run_id: str, received: Mapping[str, Micros]) -> None:
        for message_id, at in received.items():
            self._connection.execute(_KEEP_RECEIPT, (run_id, message_id, at))

    def keep_replies(self, run_id: str, replies: Mapping[str, tuple[str, Micros]]) -> None:
        kept = [(run_id, message_id, payload, at) for message_id, (payload, at) in replies.items()]
        self._connection.executemany(_KEEP_REPLY, kept)

    def _read(self, statement: str, *bindings: object) -> list[Arrival]:
        return [rows.arrival_of(row) for row in self._connection.execute(statement, bindings).fetchall()]


def list_messages(connection: apsw.Connection, run_id: str) -> list[Arrival]:
    """The messages that wait in a run's inbox."""
    return [rows.arrival_of(row) for row in connection.execute(_MESSAGES, (run_id,)).fetchall()]
