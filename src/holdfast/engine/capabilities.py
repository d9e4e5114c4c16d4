"""Capabilities: what only some stores can do. Asking for one that a store lacks is refused in words."""

from __future__ import annotations

from holdfast.core.errors import InvalidRequest
from holdfast.core.ports import Database, Store, Transfer


def database_of(store: Store, what: str) -> Database:
    """The store as a database; `InvalidRequest` names what needs it, if it is none."""
    if (database := store.database) is None:
        raise InvalidRequest(f"hf.{what}: this store cannot hold your tables; use sqlite:///file.db or postgresql://…")
    return database


def transfer_of(store: Store, what: str) -> Transfer:
    """The store as a place to export runs from or import them into; `InvalidRequest` if it is none."""
    if (transfer := store.transfer) is None:
        raise InvalidRequest(
            f"hf.{what}: {type(store).__name__} cannot export or import runs; it offers no `transfer` capability"
        )
    return transfer
