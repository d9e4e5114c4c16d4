"""The codec: values to JSON text and back, led by type hints.

What is stored comes back equal, or is refused at once with a reason; it is never changed silently.
`Codec.store` therefore encodes, decodes again and compares, all at C speed; only a value that looks
changed is walked in Python, to tell a harmless change from a loss.

With a type hint the same value comes back. Without one (`Any`) it comes back as plain JSON: tuples and sets
as lists, objects as dicts, datetimes and the like as text. That is so from the first run on, because a fresh
step returns what was decoded, exactly as a replay does.

Nothing here is ever pickled, and no class is looked up by a stored name.
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
"""The most digits that Python reads in a whole number."""

T = TypeVar("T")


class Codec(Generic[T]):
    """Turns values of one declared type into JSON text and back. Build it once per type.

    `name` is what messages call the type; it defaults to the hint itself.
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
        except Exception as error:  # msgspec evaluates the annotations of classes, which may raise anything
            raise InvalidRequest(f"a value declared as {self._name} cannot be read from JSON: {error}") from error

    def encode(self, value: T, what: str = "value", limit: int = VALUE_LIMIT_BYTES) -> str:
        """The JSON text of `value`, which is sure to decode again."""
        return self.store(value, what, limit)[0]

    def decode(self, text: str, what: str = "value") -> T:
        """The value that `text` stands for, as the declared type."""
        try:
            return self._decode(text)
        except Exception as error:  # validators and `__post_init__` of users may raise anything
            if (flaw := json_flaw(text)) is not None:
                raise Unreadable(f"{what} cannot be read as JSON: {flaw}") from error
            raise self._unfit(what, error) from error

    def store(self, value: T, what: str = "value", limit: int = VALUE_LIMIT_BYTES) -> tuple[str, T]:
        """The JSON text of `value`, and the value that each reading of that text gives."""
        try:
            encoded = _encode(value)
        except Exception as error:  # serializers of users may raise anything
            raise _refusal(what, _obstacle(value) or ("", _reason(error))) from error
        if len(encoded) > limit:
            raise PayloadTooLarge(f"{what} has {len(encoded):,} bytes as JSON; the limit is {limit:,}")
        try:
            back = self._decode(encoded)
            text = encoded.decode()
        except Exception as error:
            raise self._misfit(value, what, error) from error
        # Shorter text cannot nest too deep.
        if len(text) > 2 * DEPTH_LIMIT and text.count("[") + text.count("{") > DEPTH_LIMIT:
            _check_depth(_decode_plain(text) if self._is_typed else back, what)
        # NaN is written as null, and an `__eq__` of the user's may overlook what became of it.
        if not _is_same(value, back) or (self._is_typed and "null" in text and not _is_same_inside(value, back)):
            change = _change(value, back)
            if change:
                raise _refusal(what, change)
        return text, back

    def _misfit(self, value: T, what: str, error: Exception) -> InvalidRequest:
        # NaN in a float field arrives here as "expected float, got null"; say what it really was.
        change = _change(value, value)
        return _refusal(what, change) if change else self._undeclared(value, what, error)

    def _undeclared(self, value: T, what: str, error: Exception) -> InvalidRequest:
        return NotSerializable(
            f"{what} is declared as {self._name}, which does not fit this {name_of(type(value))}: {_reason(error)}; "
            f"correct the value or the type hint"
        )

    def _unfit(self, what: str, error: Exception) -> InvalidRequest:
        return InvalidRequest(f"{what} does not fit {self._name}: {_reason(error)}")


class ArgumentsCodec(Codec[T]):
    """Of arguments: those that do not fit are told like a payload that does not, by the function they are for."""

    __slots__ = ()

    def _undeclared(self, value: T, what: str, error: Exception) -> InvalidRequest:
        return self._unfit(what, error)


def encode_any(value: Any, what: str = "value", limit: int = VALUE_LIMIT_BYTES) -> str:
    """The JSON text of a value that has no declared type."""
    return _ANY.encode(value, what, limit)


def decode_any(text: str, what: str = "value") -> Any:
    """The plain JSON value of a text."""
    return _ANY.decode(text, what)


def json_flaw(text: str) -> str | None:
    """Why a text cannot be read as JSON by any type hint; None if it can be."""
    try:
        _decode_plain(text)
    except (ValueError, RecursionError, TypeError) as error:  # msgspec's own errors, and those of text and digits
        return _reason(error)
    return None


def same_json(a: str, b: str) -> bool:
    """Whether two JSON texts mean the same value: the order of keys is irrelevant; `1`, `1.0` and `true` differ."""
    return a == b or _encode_sorted(decode_any(a)) == _encode_sorted(decode_any(b))


# What msgspec does not know by itself: pydantic models (never imported, known by their methods)
# and subclasses of text and numbers.

_EXACT: dict[type[Any], Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}


def _to_plain(value: Any) -> Any:
    if _is_pydantic(type(value)):
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True).encode())
    for base, exact in _EXACT.items():
        if isinstance(value, base) and type(value) is not bool:  # bool comes here only as a key, and would be 1
            return exact(value)
    raise TypeError


def _from_plain(kind: Any, plain: Any) -> Any:
    if _is_pydantic(kind):
        # As JSON again, not as Python values: only there does a strict model take text for a datetime.
        try:
            return kind.model_validate_json(_encode(plain))
        except ValueError as error:
            faults: list[Any] = getattr(error, "errors", list)()
            told = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".lstrip(": ") for fault in faults]
            raise ValueError("; ".join(told) or str(error)) from error
    if isinstance(kind, type) and type(plain) in _EXACT and issubclass(kind, type(plain)):
        return kind(plain)
    return plain  # msgspec refuses it unless it is a `kind` already


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "model_dump_json") and hasattr(kind, "model_validate_json")


_VAGUE_HINTS = (inspect.Parameter.empty, object, typing.NoReturn, typing.Never)
_encode = msgspec.json.Encoder(enc_hook=_to_plain).encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode_plain = msgspec.json.Decoder().decode


# Whether two values are the same: at C speed, for every value.


def _is_same(value: Any, back: Any) -> bool:
    try:
        return bool(value == back)
    except Exception:  # noqa: BLE001 - an `__eq__` of the user's may do anything; a closer look then decides
        return False


def _is_same_inside(value: Any, back: Any) -> bool:
    """Whether two values have equal parts, whatever their own `__eq__` says."""
    try:
        return _is_same(*(msgspec.to_builtins(each, enc_hook=_model_parts) for each in (value, back)))
    except Exception:  # noqa: BLE001 - fields that only pydantic can take apart; a closer look then decides
        return False


def _check_depth(plain: Any, what: str) -> None:
    level = [plain]
    for _ in range(DEPTH_LIMIT):
        parts = (part for each in level for part in (each.values() if type(each) is dict else each))
        level = [part for part in parts if type(part) is dict or type(part) is list]
        if not level:
            return
    raise _refusal(what, ("", _TOO_DEEP))


# Why a value is refused: slow and exact, for values that failed or looked changed.
# A finding is the path to the first part in question, and what is wrong with it.

_Finding = tuple[str, str]
_TOO_DEEP = f"is nested deeper than {DEPTH_LIMIT} levels, or contains itself"
_UNKNOWN: Any = object()  # stands for a part that has no counterpart
_SCALARS = frozenset({str, int, float, bool, type(None)})
_SETS = (set, frozenset)
_ARRAYS = (list, tuple, *_SETS)


def _refusal(what: str, finding: _Finding) -> NotSerializable:
    path, reason = finding
    where = f"`${path}`" if path and reason is not _TOO_DEEP else "it"
    return NotSerializable(f"{what} cannot be stored as JSON: {where} {reason}")


def _obstacle(value: Any, depth: int = 0) -> _Finding | None:
    """The first part that cannot be encoded."""
    try:
        _encode(value)
    except Exception as error:  # noqa: BLE001 - serializers of users may raise anything
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
        return "holds text with a lone surrogate, which is not valid Unicode"
    if isinstance(error, TypeError) and isinstance(value, dict):
        return "has keys that JSON cannot have; use text or numbers"
    if isinstance(error, TypeError):
        kind = name_of(type(value))
        return f"is of type {kind}, which has no JSON form; use plain data, a dataclass, a Struct or a pydantic model"
    return f"cannot be written: {_reason(error)}"


def _change(value: Any, back: Any, depth: int = 0) -> _Finding | None:
    """The first part that would come back as another value."""
    parts = _parts(value)
    reason = _change_of_leaf(value, back) if parts is None else _change_of_shape(value, back)
    if depth > DEPTH_LIMIT:
        reason = _TOO_DEEP
    if reason:
        return "", reason
    # Sets have no order to pair their elements by: these are then looked at on their own.
    counterparts = {} if isinstance(back, _SETS) else dict(_parts(back) or ())
    for key, part in parts or ():
        counterpart = counterparts.get(key, _UNKNOWN)
        if type(part) in _SCALARS and part == counterpart and (type(part) is not float or math.isfinite(part)):
            continue  # most parts are such; not to descend makes the walk ten times faster
        found = _change(part, counterpart, depth + 1)
        if found:
            return _label(key) + found[0], found[1]
    return None


def _change_of_leaf(value: Any, back: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value!r}, which JSON does not have; use None or text"
    if isinstance(value, datetime | time):
        # Equality says nothing here: in a repeated hour a datetime equals none of another zone.
        offset = value.utcoffset()
        has_seconds = offset is not None and offset.total_seconds() % 60 != 0
        return f"is {value!r}, and JSON has no UTC offsets with seconds; use UTC" if has_seconds else ""
    if isinstance(value, Decimal) and str(value) == str(back):
        return ""  # Decimal("NaN") is no trouble: it is written as text
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
        return f"is a {name_of(type(value))} and would come back as a mere {name_of(type(back))}" if is_sliced else ""
    keys = dict(_parts(back) or ())
    # A pydantic model may have other names in JSON, and its own rule for keys it does not know.
    is_closed = back is not _UNKNOWN and not _is_pydantic(type(back))
    for key in value:
        if not isinstance(key, str) and key not in keys:
            return f"has the key {key!r}, which would come back as text; add a type hint such as dict[int, str]"
        if is_closed and key not in keys:
            return f"has the key {key!r}, which the declared type does not have"
    return ""


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """What a value consists of, by JSON key or index; None if it has no parts."""
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
    return dict(iter(model))  # not `dict(model)`, which would first ask the model for `keys`


def _is_record(value: Any) -> bool:
    kind = type(value)
    marks = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__")
    return _is_pydantic(kind) or any(hasattr(kind, mark) for mark in marks)


# Words for messages.


def name_of(thing: Any) -> str:
    """What a type, hint or function is called in a message."""
    name = getattr(thing, "__qualname__", None)
    if name is None or typing.get_origin(thing) is not None:
        return str(thing).replace("typing.", "")
    is_clear = not isinstance(thing, type) or thing.__module__ in ("builtins", "typing")
    return str(name) if is_clear else f"{thing.__module__}.{name}"


def _label(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_ANY: Codec[Any] = Codec(Any)
