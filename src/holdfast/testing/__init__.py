"""Tools for testing workflows and stores.

    from holdfast.testing import Harness, TurnDriver, simulate    # workflows
    from holdfast.testing import FaultyStore, StoreContract       # stores
    from holdfast.testing import NamespaceContract                # drivers of isolated runs

Nothing else in holdfast imports this package. Only this package imports pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.clock import VirtualClock
    from holdfast.testing.contract import DatabaseContract, SettableClock, StoreContract, TransferContract
    from holdfast.testing.faults import FaultyStore
    from holdfast.testing.harness import Harness
    from holdfast.testing.namespace_contract import NamespaceContract
    from holdfast.testing.simulation.scenario import simulate
    from holdfast.testing.turn_driver import TurnDriver

__all__ = [
    "DatabaseContract",
    "FaultyStore",
    "Harness",
    "NamespaceContract",
    "SettableClock",
    "StoreContract",
    "TransferContract",
    "TurnDriver",
    "VirtualClock",
    "simulate",
]

_MODULES = {
    "DatabaseContract": "contract",
    "FaultyStore": "faults",
    "Harness": "harness",
    "NamespaceContract": "namespace_contract",
    "SettableClock": "contract",
    "StoreContract": "contract",
    "TransferContract": "contract",
    "TurnDriver": "turn_driver",
    "VirtualClock": "clock",
    "simulate": "simulation.scenario",
}


def __getattr__(name: str) -> Any:
    """Import a tool on first use. pytest loads this package's plugin in every project that has holdfast installed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
