"""Flaws: the fields of a stored row that cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT, Micros, moment
from holdfast.core.codec import decode_any, json_flaw
from holdfast.core.errors import Unreadable
from holdfast.core.unreadable import reason_of, told


class Flaws:
    """What of a row could not be decoded, and why."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    @property
    def told(self) -> str | None:
        return told(self._known) or None

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """The value of a field; None if it cannot be made."""
        try:
            return make()
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self._known[name] = reason_of(error)
            return None

    def json(self, name: str, text: str | None) -> Any:
        """The value of a field that is kept as JSON."""
        if text is None:
            return None
        try:
            return decode_any(text)
        except Unreadable:
            self._known[name] = json_flaw(text) or ""
            return None

    def moment(self, name: str, at: Micros | None) -> Any:
        """The value of a field that is kept as an instant. One that is None was told of before."""
        return None if at is None else self.kept(name, lambda: moment(at))

    def nearest(self, name: str, at: Micros) -> datetime:
        """Likewise, for a field that is sorted by or calculated with: the nearest date instead of none."""
        self.moment(name, at)
        return moment(min(max(at, FIRST_INSTANT), LAST_INSTANT))

    def later(self, name: str, at: Micros | None) -> Any:
        """Likewise; None also for one that is no date any more, such as the end of a sleep for ever."""
        return None if at is None or at > LAST_INSTANT else self.moment(name, at)
