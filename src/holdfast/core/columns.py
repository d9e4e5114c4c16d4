"""Columns: how stores keep the fields of a value. A field is declared once, in `model`; stores derive the rest.

A text, a number or an instant is kept as it is. A mapping, a tuple or a struct is kept as JSON text, and as null if it
is the default.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from textwrap import dedent
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

NAMES = {"group": "family"}
"""Columns whose names differ from those of their fields, because the field's name is a keyword of SQL."""

FIXED = frozenset(
    ("id", "type", "payload", "created_at", "priority", "tags", "parent_id", "on_close", "retention", "options")
)
"""Fields of a run that never change after its creation."""

NEVER_NULL = frozenset(("names",))
"""Fields that are kept as JSON even if they have their defaults."""


class StoredColumn(NamedTuple):
    """A field of a value, as a store keeps it. `default` is `NODEFAULT` if the field has none."""

    field: str
    name: str
    annotation: Any
    type: Any
    """The type of its values, besides None."""
    default: Any

    @property
    def is_required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def is_json(self) -> bool:
        return get_origin(self.type) in (dict, tuple) or issubclass(self.scalar, msgspec.Struct)

    @property
    def is_enum(self) -> bool:
        return issubclass(self.scalar, Enum)

    @property
    def scalar(self) -> type:
        """The class of its values. A literal is a text."""
        origin = get_origin(self.type)
        return str if origin is Literal else origin or self.type


@cache
def columns_of(kind: type[msgspec.Struct]) -> dict[str, StoredColumn]:
    """Return the columns of a value, by the names of its fields, in the order of the fields."""
    return {one.name: _column(one) for one in msgspec.structs.fields(kind)}


def _column(field: msgspec.structs.FieldInfo) -> StoredColumn:
    types = get_args(field.type) if NoneType in get_args(field.type) else (field.type,)
    (of_values,) = (one for one in types if one is not NoneType)
    is_empty = field.default_factory is not msgspec.NODEFAULT
    default = field.default_factory() if is_empty else field.default
    return StoredColumn(field.name, NAMES.get(field.name, field.name), field.type, of_values, default)


def compiled(name: str, text: str, known: dict[str, Any]) -> Any:
    """Return the function that a text defines. `known` are the names that it may use.

    A function that names each field executes far fewer instructions than a loop over the fields.
    """
    exec(compile(dedent(text), f"<{name} of fields>", "exec"), known)  # noqa: S102 - a text of this code base
    return known[name]
