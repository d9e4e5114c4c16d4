"""Random values of a type, derived from its declaration."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect as kinds

from holdfast.core.checkpoint import Finish, StartRollback
from holdfast.core.states import ENDS, RunState

Strategy = st.SearchStrategy[Any]

_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
_INTEGERS = st.integers(-(2**63), 2**63 - 1)
_SIZE = 2

_KNOWN: dict[type, Strategy] = {}

_NARROWER: dict[type, dict[str, Strategy]] = {
    Finish: {"state": st.sampled_from(sorted(ENDS))},
    StartRollback: {"end": st.sampled_from(sorted(ENDS - {RunState.SUCCEEDED}))},
}
"""Fields whose values the class checks itself."""

_SIMPLE: dict[type[kinds.Type], Strategy] = {
    kinds.StrType: _TEXTS,
    kinds.IntType: _INTEGERS,
    kinds.BoolType: st.booleans(),
    kinds.NoneType: st.none(),
    kinds.AnyType: st.recursive(
        st.none() | st.booleans() | st.integers() | _TEXTS,
        lambda parts: st.lists(parts, max_size=_SIZE) | st.dictionaries(_TEXTS, parts, max_size=_SIZE),
        max_leaves=5,
    ),
    kinds.DateTimeType: st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    kinds.TimeDeltaType: st.integers(0, 2**40).map(lambda number: timedelta(seconds=number / 4)),
}

_MADE: dict[type[kinds.Type], Callable[[Any], Strategy]] = {
    kinds.EnumType: lambda kind: st.sampled_from(list(kind.cls)),
    kinds.LiteralType: lambda kind: st.sampled_from(kind.values),
    kinds.UnionType: lambda kind: st.one_of(*map(_of, kind.types)),
    kinds.ListType: lambda kind: st.lists(_of(kind.item_type), max_size=_SIZE),
    kinds.VarTupleType: lambda kind: st.lists(_of(kind.item_type), max_size=_SIZE).map(tuple),
    kinds.FrozenSetType: lambda kind: st.frozensets(_of(kind.item_type), max_size=_SIZE),
    kinds.TupleType: lambda kind: st.tuples(*map(_of, kind.item_types)),
    kinds.DictType: lambda kind: st.dictionaries(_of(kind.key_type), _of(kind.value_type), max_size=_SIZE),
    kinds.StructType: lambda kind: _struct(kind.cls),
}


def values_of(hint: Any) -> Strategy:
    """Return a strategy for a type. Raises `KeyError` for a kind of type that has none."""
    return _of(kinds.type_info(hint))


def _of(kind: kinds.Type) -> Strategy:
    return _SIMPLE[type(kind)] if type(kind) in _SIMPLE else _MADE[type(kind)](kind)


def _struct(cls: type[msgspec.Struct]) -> Strategy:
    if cls not in _KNOWN:
        _KNOWN[cls] = st.deferred(lambda: _built(cls))  # a struct may contain itself
    return _KNOWN[cls]


def _built(cls: type[msgspec.Struct]) -> Strategy:
    info = kinds.type_info(cls)
    assert isinstance(info, kinds.StructType)
    narrower = _NARROWER.get(cls, {})
    fields = {field.name: narrower[field.name] if field.name in narrower else _of(field.type) for field in info.fields}
    optional = {field.name: fields.pop(field.name) for field in info.fields if not field.required}
    return st.fixed_dictionaries(fields, optional=optional).map(lambda values: cls(**values))
