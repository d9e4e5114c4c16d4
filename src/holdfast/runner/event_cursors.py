"""Event cursors: the number of the last event that a run has received per topic, kept as an entry of its history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.entries import EVENTS_LOCATION
from holdfast.core.model import Entry, EntryKind, EntryState
from holdfast.runner.inbox import Inbox
from holdfast.runner.pending_checkpoint import PendingCheckpoint


class CursorHistory(Protocol):
    """The part of a history that the cursors need."""

    @property
    def stamp(self) -> Micros: ...

    def get(self, location: str) -> Entry | None: ...

    def remember(self, entries: Iterable[Entry]) -> None: ...


class EventCursors:
    """Records the cursors of an inbox, because the entries that contain them may be pruned or not replayed."""

    __slots__ = ("_count", "_history", "_inbox", "_pending")

    def __init__(self, inbox: Inbox, history: CursorHistory, pending: PendingCheckpoint) -> None:
        self._inbox = inbox
        self._history = history
        self._pending = pending
        self._count = 0
        known = history.get(EVENTS_LOCATION)
        if known is not None:
            self._count = known.attempts
            for topic, number in msgspec.json.decode(known.result or "{}", type=dict[str, int]).items():
                inbox.note_event(topic, number)

    def keep(self, *, is_anew: bool = False) -> None:
        """Record the cursors if they changed. Record them always if the history so far is dropped (`is_anew`)."""
        text = msgspec.json.encode(self._inbox.cursors, order="sorted").decode()
        known = None if is_anew else self._history.get(EVENTS_LOCATION)
        if not self._inbox.cursors or (known is not None and known.result == text):
            return
        self._count += 1
        entry = Entry(
            location=EVENTS_LOCATION,
            kind=EntryKind.EVENT,
            state=EntryState.STARTED,
            attempts=self._count,
            result=text,
            started_at=self._history.stamp,
        )
        self._history.remember([entry])
        self._pending.add(entry, is_lazy=True)
