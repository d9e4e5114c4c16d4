"""Runs in key-value namespaces of their own: one run, one namespace, one writer, one alarm.

    from holdfast import isolated

    end = await isolated.advance(driver, hf, run_id, type="shop.checkout", payload={"order": "A-17"})

A host (an actor, a durable object, a program with one file per run) supplies the driver and calls `advance`. Start
reading with `advance`; `namespace` has the layout of the data. Nothing below this package imports it.
"""

from typing import TYPE_CHECKING, Any

from holdfast.isolated.advance import Advanced, IsolatedOptions, advance
from holdfast.isolated.driver import DictionaryNamespace, DriverFailed, NamespaceDriver
from holdfast.isolated.mail import OutboxItem, cancel, child_ended, delivered, event, message

if TYPE_CHECKING:
    from holdfast.isolated.sqlite import SqliteNamespace
else:

    def __getattr__(name: str) -> Any:
        """Load SQLite only for hosts that use it."""
        if name != "SqliteNamespace":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from holdfast.isolated.sqlite import SqliteNamespace

        return SqliteNamespace


__all__ = [
    "Advanced",
    "DictionaryNamespace",
    "DriverFailed",
    "IsolatedOptions",
    "NamespaceDriver",
    "OutboxItem",
    "SqliteNamespace",
    "advance",
    "cancel",
    "child_ended",
    "delivered",
    "event",
    "message",
]
