"""Damage: edits single values of a run on a Redis server, as a person with a client does."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.stores.kv import names
from holdfast.stores.kv.names import Moving
from tests.redis.cleaning import connect, namespace_of

_FIELDS = {"payload": names.PAYLOAD, "ready_at": names.READY, "waits": names.WAITS, "body": names.BODY}
"""Values of a run that have a field of their own, and the field of most others."""


def is_json(text: str) -> bool:
    """True if a text can stand inside of another JSON text without making that unreadable."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def damage_run(url: str, run_id: str, column: str, value: str) -> None:
    """Write a JSON text in the place of one value of a run."""
    head = f"{{{namespace_of(url)}}}:{names.head(run_id)}"
    with connect(url) as client:
        if column in _FIELDS:
            client.hset(head, _FIELDS[column], value)
            return
        body: Any = client.hget(head, names.BODY)
        client.hset(head, names.BODY, _changed(body, {column: value}))
        moving: Any = client.hget(head, names.MOVING)
        if moving is not None and column in Moving.__struct_fields__:
            parts = msgspec.json.decode(moving, type=list[msgspec.Raw])
            parts[Moving.__struct_fields__.index(column)] = msgspec.Raw(value.encode())
            client.hset(head, names.MOVING, msgspec.json.encode(parts))


def damage_entries(url: str, run_id: str, values: dict[str, str]) -> None:
    """Write JSON texts in the place of values of all entries of a run."""
    history = f"{{{namespace_of(url)}}}:{names.history(run_id)}"
    with connect(url) as client:
        entries: Any = client.hgetall(history)
        for location, entry in entries.items():
            if location:  # the field without a name is the version
                client.hset(history, location, _changed(entry, values))


def _changed(text: bytes, values: dict[str, str]) -> bytes:
    found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(found | {name: msgspec.Raw(value.encode()) for name, value in values.items()})
