"""Administration: work on a namespace without opening a store on it. It never begins an epoch and makes no keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.connector import RedisConnector
from holdfast.stores.redis.conversation import Conversation, asked, packed
from holdfast.stores.redis.errors import ConnectionLost, ServerError, Silence
from holdfast.stores.redis.handshake import handshake
from holdfast.stores.redis.keys import Keys

T = TypeVar("T")

_KEYS_AT_ONCE = 1_000
"""Number of keys of the database that one call examines, so that it does not stop the server for long."""


def fields_of(address: RedisAddress, partition: str, fields: Sequence[str]) -> dict[str, bytes]:
    """Return those fields of a partition that exist. Blocking."""
    key = Keys(address.prefix).of(partition)
    (values,) = _carried_out(address, asked(packed("HMGET", key, *fields)))
    return {field: value for field, value in zip(fields, values, strict=True) if value is not None}


def erase(url: str) -> None:
    """Remove all keys of a namespace, for good. Blocking. No process may use the namespace meanwhile."""
    address = RedisAddress.of(url)
    _carried_out(address, _erasure(address.prefix))


def _erasure(prefix: str) -> Conversation[None]:
    cursor = b"0"
    while True:
        # The characters of a namespace have no meaning in a pattern.
        ((cursor, keys),) = yield from asked(packed("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", _KEYS_AT_ONCE))
        if keys:
            yield from asked(packed("UNLINK", *keys))
        if cursor == b"0":
            return


def _carried_out(address: RedisAddress, conversation: Conversation[T]) -> T:
    connector = RedisConnector(address, lambda: _greeting(address))
    connection = connector.connect_blocking()
    try:
        return connection.converse(conversation)
    except (ConnectionLost, Silence, ServerError) as error:
        raise connector.translated(error) from error
    finally:
        connection.close()


def _greeting(address: RedisAddress) -> Conversation[None]:
    yield from handshake(address)
