"""Rows that cannot be decoded: their readable columns, and the reasons for the others.

Such rows were edited by hand, or a bug wrote them. One such row must not hide the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.core.columns import columns_of
from holdfast.core.errors import Unreadable
from holdfast.core.model import Run
from holdfast.core.states import RunState

REASON_LIMIT = 500

PLACEHOLDERS: dict[str, Any] = {
    name: column.default if not column.is_required else RunState.BLOCKED if column.is_enum else column.scalar()
    for name, column in columns_of(Run).items()
} | {"type": "?"}
"""Values in place of the fields of a run that cannot be decoded."""


@contextmanager
def readable(what: str, failures: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise `Unreadable` for rows that a store cannot decode. `failures` are the errors of the decoder."""
    try:
        yield
    except failures as error:
        raise Unreadable(f"{what} cannot be read: {reason_of(error)}") from error


def marked(columns: Mapping[str, Any]) -> tuple[Run, str]:
    """Return a run with placeholders for the columns that cannot be decoded, and their names with the reasons.

    `columns` are values by the field names of a run: either JSON that is not decoded yet (`Raw`), or plain values. As
    plain values, texts may be bytes, and the JSON fields are text.
    """
    kept = PLACEHOLDERS | {"id": repr(columns.get("id"))}
    flaws = []
    for name, value in columns.items():
        try:
            kept[name] = _decoded(name, value)
        except (ValueError, TypeError, RecursionError) as error:
            flaws.append(f"{name}: {reason_of(error)}")
    return Run(**kept), joined(flaws) or ""


def joined(reasons: Iterable[str | None]) -> str | None:
    """Join several reasons; None if there are none."""
    return _cut("; ".join(reason for reason in reasons if reason)) or None


def reason_of(error: BaseException) -> str:
    """Return the message of an error, in one line."""
    words = " ".join(str(error).split())
    return _cut(f"unknown value {words}" if isinstance(error, KeyError) else words or type(error).__name__)


def _decoded(name: str, value: Any) -> Any:
    column = columns_of(Run)[name]
    if value is None and column.is_json:
        return column.default
    if column.is_json or isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value, type=column.annotation)
    return msgspec.convert(value.decode() if isinstance(value, bytes) else value, column.annotation)


def _cut(text: str) -> str:
    return text if len(text) <= REASON_LIMIT else f"{text[:REASON_LIMIT]}…"
