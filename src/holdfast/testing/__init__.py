"""Tools for tests: of workflows that use holdfast, and of stores that holdfast uses.

    from holdfast.testing import Harness, VirtualClock

Nothing in holdfast imports this package, and pytest is imported only inside it. Start with `harness` for tests
of workflows, and with `contract`, the suite that every store is put to, for a store of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.clock import VirtualClock
    from holdfast.testing.harness import Harness

__all__ = ["Harness", "VirtualClock"]


def __getattr__(name: str) -> Any:
    """Import on first use: pytest loads the plugin of this package in every project that has holdfast installed."""
    if name == "Harness":
        from holdfast.testing.harness import Harness

        return Harness
    if name == "VirtualClock":
        from holdfast.testing.clock import VirtualClock

        return VirtualClock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
