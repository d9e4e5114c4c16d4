"""Deciding: an operation of the model on a working set, in one transaction.

What it is about is locked and loaded in one trip, the memory store's own operations decide, and what they changed is
written in another. If they want to know more than was loaded, everything is undone and done again with more: so locks
are always taken in one order, and what was read is what is decided on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
import psycopg

from holdfast.core.clock import Micros
from holdfast.core.hint import News
from holdfast.stores.postgres.calls import Calls, Connection, answer
from holdfast.stores.postgres.changes import changes_of
from holdfast.stores.postgres.wishes import Unknown, Wishes
from holdfast.stores.postgres.working import WorkingSet, decode_loaded

ROUNDS_LIMIT = 200
"""Each round knows more than the one before, so this many are a mistake of ours."""

TAKEN = "HF001"
"""What the functions say when somebody else was quicker with an id or a key."""

T = TypeVar("T")

Operation = Callable[[WorkingSet, Micros], T]


class Decider:
    """Carries out operations on a connection, in transactions of its own or as part of one that is open."""

    def __init__(self, connection: Connection, calls: Calls, at: Micros | None, *, is_open: bool = False) -> None:
        self._connection = connection
        self._calls = calls
        self._at = at
        # In somebody else's transaction a savepoint is what can be undone; its locks go with it.
        self._begin = b"savepoint holdfast" if is_open else b"begin"
        self._commit = b"release savepoint holdfast" if is_open else b"commit"
        self._undo = (b"rollback to savepoint holdfast", self._commit) if is_open else (b"rollback",)

    def decide(self, wishes: Wishes, operation: Operation[T]) -> tuple[T, News]:
        """What an operation answers once all it changed is committed, and what there is to tell of it."""
        for _ in range(ROUNDS_LIMIT):
            self._connection.execute(self._begin)
            try:
                told, working = self._attempt(wishes, operation)
                self._connection.execute(self._commit)
            except Unknown as unknown:
                self._roll_back()
                wishes.add(unknown)
            except psycopg.DatabaseError as error:
                with suppress(psycopg.Error):  # it may be the connection that is broken
                    self._roll_back()
                if error.sqlstate != TAKEN:
                    raise  # else it is done again, and meets whoever was quicker
            except BaseException:
                self._roll_back()
                raise
            else:
                return told, working.news
        raise AssertionError(f"an operation wants to know ever more: {wishes}")

    def _attempt(self, wishes: Wishes, operation: Operation[T]) -> tuple[T, WorkingSet]:
        calls = self._calls
        loaded = decode_loaded(answer(self._connection, calls.load, wishes.document(calls.schema), self._at))
        working = WorkingSet(loaded, wishes)
        told = operation(working, loaded.now)
        if changes := changes_of(working):
            self._connection.execute(calls.apply, (msgspec.json.encode(changes).decode(), loaded.now))
        return told, working

    def _roll_back(self) -> None:
        for statement in self._undo:
            self._connection.execute(statement)
