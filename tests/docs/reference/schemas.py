"""JSON Schemas of the store port and of the records that users read, made from the types and their docstrings."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import inspect as kinds

from holdfast.core.wire import tag_of
from tests.docs.reference.declarations import declaration_of
from tests.port_types import UNIONS, answer_of, members, port_types
from tests.record_types import record_types

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/{name}"
_TIMES: dict[type[kinds.Type], dict[str, str]] = {
    kinds.DateTimeType: {"type": "string", "format": "date-time"},
    kinds.TimeDeltaType: {"type": "number"},
}

Schema = dict[str, Any]


def schemas() -> dict[str, str]:
    """Return the schema files by name."""
    return {name: json.dumps(make(), indent=1, ensure_ascii=False) + "\n" for name, (make, _) in SCHEMAS.items()}


def _port() -> Schema:
    """The values that callers and stores send. A union has the name of its base, `answers` those of its members."""
    asked = {base.__name__: union for base, union in UNIONS.items()}
    answered = {tag_of(kind.__name__): answer_of(kind) for union in asked.values() for kind in members(union)}
    types = [*asked.values(), *answered.values(), *port_types().values()]
    made, found = msgspec.json.schema_components(types, ref_template=_REF)
    unions = dict(zip(asked, made, strict=False))
    answers = dict(zip(answered, made[len(unions) :], strict=False))
    return {
        "$schema": DIALECT,
        "title": "The store port of holdfast",
        "description": "What callers and stores send. `answers` are the types of answers by the `kind` of a request.",
        "answers": answers,
        "$defs": unions | _described(found),
    }


def _records() -> Schema:
    """The records that users read, as `--json` shows them: every field is present."""
    types = record_types()
    _, found = msgspec.json.schema_components(types.values(), ref_template=_REF)
    defs = _described(found)
    for cls in _structs(types.values(), {}).values():
        _show(cls, defs[cls.__name__])
    return {
        "$schema": DIALECT,
        "title": "The records of holdfast",
        "description": "What `--json` shows. Every field is present. Times are in UTC, lengths of time in seconds.",
        "$defs": defs,
    }


def _described(found: dict[str, Schema]) -> dict[str, Schema]:
    """Return schemas without the indentation of docstrings, by name."""
    for schema in found.values():
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
    return dict(sorted(found.items()))


def _show(cls: type[msgspec.Struct], schema: Schema) -> None:
    """Change the schema of a struct to the form in which `as_json` writes it, with the docstrings of its fields."""
    docs = {member.name: member.doc for member in declaration_of(cls).members}
    info = kinds.type_info(cls)
    assert isinstance(info, kinds.StructType)
    schema["required"] = list(schema["properties"])
    for field in info.fields:
        parts = field.type.types if isinstance(field.type, kinds.UnionType) else (field.type,)
        if times := [_TIMES[type(part)] for part in parts if type(part) in _TIMES]:
            may_be_null = any(isinstance(part, kinds.NoneType) for part in parts)
            schema["properties"][field.encode_name] = {"anyOf": [*times, {"type": "null"}]} if may_be_null else times[0]
        shown = schema["properties"][field.encode_name] = dict(schema["properties"][field.encode_name])
        shown.pop("default", None)
        if doc := docs.get(field.name):
            shown["description"] = inspect.cleandoc(doc)


def _structs(types: Iterable[Any], found: dict[str, type[msgspec.Struct]]) -> dict[str, type[msgspec.Struct]]:
    """Return all structs in these types, by name."""
    pending: list[Any] = list(kinds.multi_type_info(types))
    while pending:
        kind = pending.pop()
        if isinstance(kind, kinds.StructType):
            if kind.cls.__name__ in found:
                continue
            found[kind.cls.__name__] = kind.cls
            pending += [field.type for field in kind.fields]
        else:
            pending += [*getattr(kind, "types", ()), *getattr(kind, "item_types", ())]
            pending += [part for name in ("item_type", "value_type") if (part := getattr(kind, name, None)) is not None]
    return found


SCHEMAS: dict[str, tuple[Callable[[], Schema], str]] = {
    "records.schema.json": (_records, "records"),
    "port.schema.json": (_port, "the store port"),
}
"""The functions that make the files, and what the files describe."""
