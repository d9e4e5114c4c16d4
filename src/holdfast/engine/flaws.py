"""Records: what users read of stored rows. Flaws: the fields of a row that cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVar

import msgspec

from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT, Micros, moment
from holdfast.core.codec import decode_any
from holdfast.core.unreadable import joined, reason_of

R = TypeVar("R", bound=msgspec.Struct)


def record(kind: type[R], row: msgspec.Struct, *, unreadable: str | None = None, **known: Any) -> R:
    """Return a row as users read it: each field of the record in the form that its type says.

    Instants become datetimes, lengths become timedeltas and JSON texts become values. `known` are fields that the row
    does not have, or functions that make them. A field that cannot be decoded is None, or the nearest valid date, and
    `unreadable` of the record says why.
    """
    flaws = [unreadable]
    for name, form in _forms(kind).items():
        value = known[name] if name in known else getattr(row, name)
        if value is None or form is None:
            known[name] = value
            continue
        try:
            known[name] = value() if callable(value) else form(value)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            known[name] = nearest(value) if form is moment else None
            flaws.append(f"{name}: {reason_of(error.__cause__ or error)}")
    if "unreadable" in kind.__struct_fields__:
        known["unreadable"] = joined(flaws)
    return kind(**known)


def nearest(at: Micros) -> datetime:
    """Return an instant as a datetime, or the nearest valid one."""
    return moment(min(max(at, FIRST_INSTANT), LAST_INSTANT))


def _later(at: Micros) -> datetime | None:
    """Return None for an instant after the last date, such as the end of an endless sleep."""
    return None if at > LAST_INSTANT else moment(at)


def _length(length: Micros) -> timedelta:
    return timedelta(microseconds=length)


_FORMS: dict[Any, Callable[[Any], Any]] = {
    Any: decode_any,
    datetime: moment,
    datetime | None: _later,
    timedelta: _length,
    timedelta | None: _length,
}


@cache
def _forms(kind: type[msgspec.Struct]) -> dict[str, Callable[[Any], Any] | None]:
    """Return the form of each field. None if the row has it as users see it."""
    fields = msgspec.structs.fields(kind)
    return {field.name: _FORMS.get(field.type) for field in fields if field.name != "unreadable"}
