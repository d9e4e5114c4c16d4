"""Capabilities: operations that only some stores support. A missing capability raises a clear error."""

from __future__ import annotations

from holdfast.config.secret import scrubbed
from holdfast.core.errors import InvalidRequest
from holdfast.core.ports import Database, Store, Transfer
from holdfast.engine.session import Session

_INSTEAD = {
    "connection": "use your own connection to another database, in a step that passes on its idempotency key",
    "start_in": "commit your rows first, then call hf.start with a key, which is safe to repeat",
    "send_in": "commit your rows first, then call run.send with an id, which is safe to repeat",
    "emit_in": "commit your rows first, then call hf.emit",
}
"""What to do on a store without a database, by call."""


def database_of(session: Session, what: str) -> Database:
    """Return the database of a store. Raises `InvalidRequest` with the call `what` if the store has none."""
    if (database := session.store.database) is None:
        raise InvalidRequest(
            f"hf.{what}: {scrubbed(session.url)} cannot hold your tables, so it cannot commit your rows and runs "
            f"together; use sqlite:///file.db or postgresql://…, or {_INSTEAD[what]}"
        )
    return database


def transfer_of(store: Store, what: str) -> Transfer:
    """Return the transfer capability of a store. Raises `InvalidRequest` with the call `what` if it has none."""
    if (transfer := store.transfer) is None:
        raise InvalidRequest(
            f"hf.{what}: {type(store).__name__} cannot export or import runs; it offers no `transfer` capability"
        )
    return transfer
