"""Event cursors: the number of the last event that a run has received per topic, kept as an entry of its history."""

from __future__ import annotations

import msgspec

from holdfast.core.entries import EVENTS_LOCATION
from holdfast.core.model import Entry, EntryKind, EntryState
from holdfast.runner.history import History
from holdfast.runner.inbox import Inbox
from holdfast.runner.pending_checkpoint import PendingCheckpoint


class EventCursors:
    """Records the cursors of an inbox, because the entries that contain them may be pruned or not replayed."""

    __slots__ = ("_count", "_history", "_inbox", "_pending")

    def __init__(self, inbox: Inbox, history: History, pending: PendingCheckpoint) -> None:
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
