"""The codec: converts values to JSON text and back, guided by type hints.

A stored value comes back equal, or it is refused at once with a reason. It is never changed silently.
`Codec.store` therefore encodes, decodes again and compares, all at C speed. Only a value that looks
changed is walked in Python, to tell a harmless change from a loss.

With a type hint, the same value comes back. Without one (`Any`), it comes back as plain JSON: tuples and sets
as lists, objects as dicts, datetimes and similar types as strings. This holds from the first run on: a fresh
step returns the decoded value, exactly as a replay does.

Nothing is ever pickled, and no class is looked up by a stored name.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Iterable
from datetime import datetime, time
from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.core.errors import InvalidRequest, NotSerializable, PayloadTooLarge, Unreadable

VALUE_LIMIT_BYTES = 2 * 1024 * 1024
DEPTH_LIMIT = 64
DIGIT_LIMIT = 4_300
"""Maximum number of digits that Python parses in an integer."""

T = TypeVar("T")


class Codec(Generic[T]):
    """Converts values of one declared type to JSON text and back. Build it once per type.

    Messages call the type `name`. The default is the hint itself.
    """

    __slots__ = ("_decode", "_is_typed", "_name")

    @typing.overload
    def __init__(self, hint: type[T], name: str = "") -> None: ...
    @typing.overload
    def __init__(self: Codec[Any], hint: Any = Any, name: str = "") -> None: ...
    def __init__(self, hint: Any = Any, name: str = "") -> None:
        if any(hint is vague for vague in _VAGUE_HINTS):
            hint = Any
        self._name = name or name_of(hint)
        self._is_typed = hint is not Any
        try:
            self._decode: Callable[[str | bytes], T] = msgspec.json.Decoder(hint, dec_hook=_from_plain).decode
        except Exception as error:  # msgspec evaluates annotations of user classes, which may raise anything
            raise InvalidRequest(f"a value declared as {self._name} cannot be read from JSON: {error}") from error

    def encode(self, value: T, what: str = "value", limit: int = VALUE_LIMIT_BYTES) -> str:
        """Return the JSON text of `value`. It is guaranteed to decode again."""
        return self.store(value, what, limit)[0]

    def decode(self, text: str, what: str = "value") -> T:
        """Return the value of `text`, as the declared type."""
        try:
            return self._decode(text)
        except Exception as error:  # validators and `__post_init__` of user classes may raise anything
            if (flaw := json_flaw(text)) is not None:
                raise Unreadable(f"{what} cannot be read as JSON: {flaw}") from error
            raise self._unfit(what, error) from error

    def store(self, value: T, what: str = "value", limit: int = VALUE_LIMIT_BYTES) -> tuple[str, T]:
        """Return the JSON text of `value`, and the value that decoding this text gives."""
        try:
            encoded = _encode(value)
        except Exception as error:  # serializers of user classes may raise anything
            raise _refusal(what, _obstacle(value) or ("", _reason(error))) from error
        if len(encoded) > limit:
            raise PayloadTooLarge(f"{what} has {len(encoded):,} bytes as JSON; the limit is {limit:,}")
        try:
            back = self._decode(encoded)
            text = encoded.decode()
        except Exception as error:
            raise self._misfit(value, what, error) from error
        # A shorter text cannot be nested too deeply.
        if len(text) > 2 * DEPTH_LIMIT and text.count("[") + text.count("{") > DEPTH_LIMIT:
            _check_depth(_decode_plain(text) if self._is_typed else back, what)
        # msgspec writes NaN as null, and a user's `__eq__` may not notice the difference.
        if not _is_same(value, back) or (self._is_typed and "null" in text and not _is_same_inside(value, back)):
            change = _change(value, back)
            if change:
                raise _refusal(what, change)
        return text, back

    def _misfit(self, value: T, what: str, error: Exception) -> InvalidRequest:
        # NaN in a float field fails here as "expected float, got null". Report the NaN instead.
        change = _change(value, value)
        return _refusal(what, change) if change else self._undeclared(value, what, error)

    def _undeclared(self, value: T, what: str, error: Exception) -> InvalidRequest:
        return NotSerializable(
            f"{what} is declared as {self._name}, but this {name_of(type(value))} does not fit: {_reason(error)}; "
            f"correct the value or the type hint"
        )

    def _unfit(self, what: str, error: Exception) -> InvalidRequest:
        return InvalidRequest(f"{what} does not fit {self._name}: {_reason(error)}")


class ArgumentsCodec(Codec[T]):
    """A codec for arguments. Arguments that do not fit are reported like a payload, by the name of their function."""

    __slots__ = ()

    def _undeclared(self, value: T, what: str, error: Exception) -> InvalidRequest:
        return self._unfit(what, error)


def encode_any(value: Any, what: str = "value", limit: int = VALUE_LIMIT_BYTES) -> str:
    """Return the JSON text of a value without a declared type."""
    return ANY.encode(value, what, limit)


def decode_any(text: str, what: str = "value") -> Any:
    """Return the plain value of a JSON text."""
    return ANY.decode(text, what)


def json_flaw(text: str) -> str | None:
    """Return the reason why a text is not valid JSON for any type hint; None if it is valid."""
    try:
        _decode_plain(text)
    except (ValueError, RecursionError, TypeError) as error:  # from msgspec, and from Unicode and digit limits
        return _reason(error)
    return None


def same_json(a: str, b: str) -> bool:
    """True if two JSON texts have the same value. Key order is irrelevant; `1`, `1.0` and `true` differ."""
    return a == b or _encode_sorted(decode_any(a)) == _encode_sorted(decode_any(b))


# Types that msgspec does not support: pydantic models (recognised by their methods, so that pydantic is never imported)
# and subclasses of str, int and float.

_EXACT: dict[type[Any], Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}


def _to_plain(value: Any) -> Any:
    if _is_pydantic(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())
    for base, exact in _EXACT.items():
        if isinstance(value, base) and type(value) is not bool:  # a bool comes only as a dict key; it would become 1
            return exact(value)
    raise TypeError


def _from_plain(kind: Any, plain: Any) -> Any:
    if _is_pydantic(kind):
        # Validate JSON, not Python values: a strict model accepts a string for a datetime only in JSON.
        try:
            return kind.model_validate_json(_encode(plain))
        except ValueError as error:
            faults: list[Any] = getattr(error, "errors", list)()
            lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".lstrip(": ") for fault in faults]
            raise ValueError("; ".join(lines) or str(error)) from error
    if isinstance(kind, type) and type(plain) in _EXACT and issubclass(kind, type(plain)):
        return kind(plain)
    return plain  # msgspec refuses it unless it already is a `kind`


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "model_dump_json") and hasattr(kind, "model_validate_json")


_VAGUE_HINTS = (inspect.Parameter.empty, object, typing.NoReturn, typing.Never)
_encode = msgspec.json.Encoder(enc_hook=_to_plain).encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode_plain = msgspec.json.Decoder().decode


# Comparison: at C speed, for every value.


def _is_same(value: Any, back: Any) -> bool:
    try:
        return bool(value == back)
    except Exception:  # noqa: BLE001 - a user's `__eq__` may raise anything; the slow comparison then decides
        return False


def _is_same_inside(value: Any, back: Any) -> bool:
    """True if two values have equal parts, regardless of their own `__eq__`."""
    try:
        return _is_same(*(msgspec.to_builtins(each, enc_hook=_model_parts) for each in (value, back)))
    except Exception:  # noqa: BLE001 - only pydantic can take some fields apart; the slow comparison then decides
        return False


def _check_depth(plain: Any, what: str) -> None:
    level = [plain]
    for _ in range(DEPTH_LIMIT):
        parts = (part for each in level for part in (each.values() if type(each) is dict else each))
        level = [part for part in parts if type(part) is dict or type(part) is list]
        if not level:
            return
    raise _refusal(what, ("", _TOO_DEEP))


# Reasons for a refusal: slow and exact, for values that failed or looked changed.
# A finding is the path to the first bad part, and the reason.

_Finding = tuple[str, str]
_TOO_DEEP = f"is nested deeper than {DEPTH_LIMIT} levels, or contains itself"
_UNKNOWN: Any = object()  # a part without a counterpart
_SCALARS = frozenset({str, int, float, bool, type(None)})
_SETS = (set, frozenset)
_ARRAYS = (list, tuple, *_SETS)


def _refusal(what: str, finding: _Finding) -> NotSerializable:
    path, reason = finding
    where = f"`${path}`" if path and reason is not _TOO_DEEP else "it"
    return NotSerializable(f"{what} cannot be stored as JSON: {where} {reason}")


def _obstacle(value: Any, depth: int = 0) -> _Finding | None:
    """Find the first part that cannot be encoded."""
    try:
        _encode(value)
    except Exception as error:  # noqa: BLE001 - serializers of user classes may raise anything
        if depth > DEPTH_LIMIT:
            return "", _TOO_DEEP
        for key, part in _parts(value) or ():
            found = _obstacle(part, depth + 1)
            if found:
                return _label(key) + found[0], found[1]
        return "", _why_not_encoded(value, error)
    return None


def _why_not_encoded(value: Any, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, UnicodeError):
        return "contains text with a lone surrogate, which is not valid Unicode"
    if isinstance(error, TypeError) and isinstance(value, dict):
        return "has keys that JSON does not support; use strings or numbers"
    if isinstance(error, TypeError):
        kind = name_of(type(value))
        return f"is of type {kind}, which has no JSON form; use plain data, a dataclass, a Struct or a pydantic model"
    return f"cannot be written: {_reason(error)}"


def _change(value: Any, back: Any, depth: int = 0) -> _Finding | None:
    """Find the first part that would come back as another value."""
    parts = _parts(value)
    reason = _change_of_leaf(value, back) if parts is None else _change_of_shape(value, back)
    if depth > DEPTH_LIMIT:
        reason = _TOO_DEEP
    if reason:
        return "", reason
    # Elements of sets cannot be paired by order, so each is checked without a counterpart.
    counterparts = {} if isinstance(back, _SETS) else dict(_parts(back) or ())
    for key, part in parts or ():
        counterpart = counterparts.get(key, _UNKNOWN)
        if type(part) in _SCALARS and part == counterpart and (type(part) is not float or math.isfinite(part)):
            continue  # true of most parts; skipping them here makes the walk ten times faster
        found = _change(part, counterpart, depth + 1)
        if found:
            return _label(key) + found[0], found[1]
    return None


def _change_of_leaf(value: Any, back: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value!r}, which JSON does not support; use None or a string"
    if isinstance(value, datetime | time):
        # Equality is useless here: a datetime in a repeated hour never equals one in another time zone.
        offset = value.utcoffset()
        has_seconds = offset is not None and offset.total_seconds() % 60 != 0
        return f"is {value!r}, and JSON has no UTC offsets with seconds; use UTC" if has_seconds else ""
    if isinstance(value, Decimal) and str(value) == str(back):
        return ""  # Decimal("NaN") never equals itself, but is written as a string and comes back
    is_number = isinstance(value, int | float) and isinstance(back, int | float)
    if (is_number or type(value) is type(back)) and not _is_same(value, back):
        return f"is {value!r} and would come back as {back!r}"
    return ""


def _change_of_shape(value: Any, back: Any) -> str:
    if isinstance(value, _ARRAYS):
        is_shorter = isinstance(back, _SETS) and len(back) < len(value)
        return "has duplicates, which a set does not keep" if is_shorter else ""
    if not isinstance(value, dict):
        is_sliced = _is_record(back) and type(value) is not type(back)
        return f"is a {name_of(type(value))} and would come back as a {name_of(type(back))}" if is_sliced else ""
    keys = dict(_parts(back) or ())
    # A pydantic model may use other names in JSON, and has its own rule for unknown keys.
    is_closed = back is not _UNKNOWN and not _is_pydantic(type(back))
    for key in value:
        if not isinstance(key, str) and key not in keys:
            return f"has the key {key!r}, which would come back as a string; add a type hint such as dict[int, str]"
        if is_closed and key not in keys:
            return f"has the key {key!r}, which the declared type does not have"
    return ""


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the parts of a value by JSON key or index; None if it has no parts."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, _ARRAYS):
        return enumerate(value)
    if isinstance(value, msgspec.Struct):
        named = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return [(key, part) for key, name in named if (part := getattr(value, name)) is not UNSET]
    if _is_pydantic(type(value)):
        return _model_parts(value).items()
    if _is_record(value):
        fields = getattr(value, "__attrs_attrs__", None) or dataclasses.fields(value)
        return [(field.name, part) for field in fields if (part := getattr(value, field.name, UNSET)) is not UNSET]
    return None


def _model_parts(model: Any) -> dict[str, Any]:
    return dict(iter(model))  # `dict(model)` would use a field or method named `keys`


def _is_record(value: Any) -> bool:
    kind = type(value)
    marks = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__")
    return _is_pydantic(kind) or any(hasattr(kind, mark) for mark in marks)


# Names for messages.


def name_of(thing: Any) -> str:
    """Return the name of a type, hint or function for messages."""
    name = getattr(thing, "__qualname__", None)
    if name is None or typing.get_origin(thing) is not None:
        return str(thing).replace("typing.", "")
    is_clear = not isinstance(thing, type) or thing.__module__ in ("builtins", "typing")
    return str(name) if is_clear else f"{thing.__module__}.{name}"


def _label(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


ANY: Codec[Any] = Codec(Any)
"""The codec of values whose type nothing declares."""
