"""The wire: the JSON of everything that crosses a border. `decoded` reads it, `as_json` shows it to users.

Every command, question, checkpoint, lease, verdict and answer of the port is a struct that msgspec encodes and decodes.
`decoded` reads what comes from outside. A value that it accepts is whole: nothing in the text was left out.

Rows that cannot be decoded keep their readable columns, with the reasons for the others. Such rows were edited by hand,
or a bug wrote them. One such row must not hide the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeVar, overload

import msgspec

from holdfast.core.codec import DEPTH_LIMIT, VALUE_LIMIT_BYTES
from holdfast.core.errors import InvalidRequest, PayloadTooLarge, Unreadable, nearest
from holdfast.core.model import Run, Value, columns_of
from holdfast.core.states import RunState

WIRE_LIMIT_BYTES = 32 * VALUE_LIMIT_BYTES
"""Maximum size of a request, which may have many values."""

_INTEGERS = range(-(2**63), 2**63)

T = TypeVar("T")


def tag_of(name: str) -> str:
    """Return the tag of a class: `SendMessages` is `send_messages`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition(".")[2]).lower()


class Tagged(Value, frozen=True, kw_only=True, tag=tag_of, tag_field="kind"):
    """The base of the members of unions. `kind` in the JSON of a value names its class."""


@overload
def decoded(text: str | bytes, kind: type[T], what: str = ..., limit: int = ...) -> T: ...
@overload
def decoded(text: str | bytes, kind: Any, what: str = ..., limit: int = ...) -> Any: ...
def decoded(text: str | bytes, kind: Any, what: str = "the request", limit: int = WIRE_LIMIT_BYTES) -> Any:
    """Return the value of a JSON text from outside. Raises `InvalidRequest` with the path of the first mistake.

    Unknown and repeated fields are mistakes: a misspelt option must not be ignored. Values in a store are read without
    this rule, so that an older version can read the rows of a newer one. Integers have at most 64 bits, because no
    store keeps more.
    """
    if len(text) > limit:
        raise PayloadTooLarge(f"{what} has {len(text):,} bytes as JSON; the limit is {limit:,}")
    try:
        value = _decoder(kind).decode(text)
        _check(json.loads(text, object_pairs_hook=_members), value, "$")
    except RecursionError as error:
        raise InvalidRequest(f"{what} is nested deeper than {DEPTH_LIMIT} levels") from error
    except ValueError as error:  # from msgspec and from the Unicode codec
        reason = " ".join(str(error).split())
        raise InvalidRequest(f"{what} is refused: {reason if ' at `$' in reason else f'{reason} - at `$`'}") from error
    return value


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"Object has the field `{next(name for name in names if names.count(name) > 1)}` twice")
    return found


def _check(plain: Any, value: Any, path: str, depth: int = 1) -> None:
    """Refuse plain JSON that `value` was decoded from, if it says more than the value, or more than a store keeps."""
    if depth > DEPTH_LIMIT:
        raise RecursionError
    parts: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(plain, dict):
        if isinstance(value, msgspec.Struct):
            names = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
            for key in plain:
                if key not in names and key != value.__struct_config__.tag_field:
                    near = nearest(key, names)
                    advice = "" if near is None else f"; did you mean `{near}`?"
                    raise ValueError(f"Object contains the unknown field `{key}`{advice} - at `{path}`")
            parts = ((f".{key}", part, getattr(value, names.get(key, ""), None)) for key, part in plain.items())
        else:
            parts = zip((f"[{key!r}]" for key in plain), plain.values(), value.values(), strict=True)
    elif isinstance(plain, list):
        known = value if isinstance(value, (list, tuple)) else plain  # a set has no order, and no structs in it
        parts = ((f"[{index}]", *pair) for index, pair in enumerate(zip(plain, known, strict=True)))
    elif isinstance(plain, int) and plain not in _INTEGERS:
        raise ValueError(f"Integer value has more than 64 bits - at `{path}`")
    elif isinstance(plain, str) and "\0" in plain:
        raise ValueError(f"Text contains NUL, which not every store keeps - at `{path}`")
    for step, part, counterpart in parts:
        _check(part, counterpart, path + step, depth + 1)


# What users read


def as_json(value: Any, *, indent: int | None = None, is_ascii: bool = False) -> str:
    """Return the JSON of a record, or of plain data with records in it. It is stable: only add to it, never change it.

    Every field is present, null if it is unknown or does not apply. Times are ISO 8601 in UTC with microseconds, so
    that they sort as text. Lengths of time are seconds; the name of such a field says so (`every_seconds`).
    """
    return json.dumps(value, ensure_ascii=is_ascii, indent=indent, default=plain_form)


def plain_form(value: Any) -> Any:
    """Return the JSON form of one value that is not plain data. Its parts keep their own form."""
    if isinstance(value, msgspec.Struct):
        named = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {key: getattr(value, name) for key, name in named}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no JSON form")


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
