"""Records: what users read of stored rows. Flaws: the fields of a row that cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVar

import msgspec

from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT, Micros, moment
from holdfast.core.codec import decode_any, json_flaw
from holdfast.core.errors import Unreadable
from holdfast.core.unreadable import joined, reason_of, told

R = TypeVar("R", bound=msgspec.Struct)


class Flaws:
    """Collects the fields of a row that could not be decoded, with the reasons."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    @property
    def told(self) -> str | None:
        return told(self._known) or None

    def record(self, kind: type[R], row: msgspec.Struct, **known: Any) -> R:
        """Return a row as users read it: each field of the record in the form that its type says.

        Instants become datetimes, lengths become timedeltas and JSON texts become values. `known` are the fields that
        the row does not have in this form. `unreadable` says which fields of the row cannot be decoded.
        """
        forms = _forms(kind)
        fields = {name: form(self, name, getattr(row, name)) for name, form in forms.items() if name not in known}
        if "unreadable" in kind.__struct_fields__:
            known["unreadable"] = joined([known.get("unreadable"), self.told])
        return kind(**fields, **known)

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the value of a field. None, and a noted flaw, if `make` fails."""
        try:
            return make()
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self._known[name] = reason_of(error)
            return None

    def json(self, name: str, text: str | None) -> Any:
        """Return the value of a field that is stored as JSON."""
        if text is None:
            return None
        try:
            return decode_any(text)
        except Unreadable:
            self._known[name] = json_flaw(text) or ""
            return None

    def moment(self, name: str, at: Micros | None) -> Any:
        """Return the value of a field that is stored as an instant. None if it is None, which was noted before."""
        return None if at is None else self.kept(name, lambda: moment(at))

    def nearest(self, name: str, at: Micros) -> datetime:
        """Like `moment`, but return the nearest valid date instead of None, for fields to sort or calculate with."""
        self.moment(name, at)
        return moment(min(max(at, FIRST_INSTANT), LAST_INSTANT))

    def later(self, name: str, at: Micros | None) -> Any:
        """Like `moment`, but return None for an instant after the last date, such as the end of an endless sleep."""
        return None if at is None or at > LAST_INSTANT else self.moment(name, at)

    def length(self, _: str, length: Micros | None) -> Any:
        """Return the value of a field that is stored as a length of time."""
        return None if length is None else timedelta(microseconds=length)

    def same(self, _: str, value: Any) -> Any:
        """Return the value of a field that is stored as users see it."""
        return value


_FORMS: dict[Any, Callable[[Flaws, str, Any], Any]] = {
    Any: Flaws.json,
    datetime: Flaws.nearest,
    datetime | None: Flaws.later,
    timedelta: Flaws.length,
    timedelta | None: Flaws.length,
}


@cache
def _forms(kind: type[msgspec.Struct]) -> dict[str, Callable[[Flaws, str, Any], Any]]:
    fields = msgspec.structs.fields(kind)
    return {field.name: _FORMS.get(field.type, Flaws.same) for field in fields if field.name != "unreadable"}
