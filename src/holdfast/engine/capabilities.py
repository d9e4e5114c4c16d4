"""Capabilities: operations that only some stores support. A missing capability raises a clear error."""

from __future__ import annotations

from holdfast.core.errors import InvalidRequest
from holdfast.core.ports import Database, Store, Transfer


def database_of(store: Store, what: str) -> Database:
    """Return the database of a store. Raises `InvalidRequest` with the call `what` if the store has none."""
    if (database := store.database) is None:
        raise InvalidRequest(f"hf.{what}: this store cannot hold your tables; use sqlite:///file.db or postgresql://…")
    return database


def transfer_of(store: Store, what: str) -> Transfer:
    """Return the transfer capability of a store. Raises `InvalidRequest` with the call `what` if it has none."""
    if (transfer := store.transfer) is None:
        raise InvalidRequest(
            f"hf.{what}: {type(store).__name__} cannot export or import runs; it offers no `transfer` capability"
        )
    return transfer
