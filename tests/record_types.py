"""The records that users read: every public struct that is not an input, and those that only the command line shows."""

from __future__ import annotations

import msgspec

import holdfast
import holdfast.typing
from holdfast.cli.view import Snapshot
from holdfast.core.ports import Finding, Pruned, SchemaStatus
from holdfast.engine.explain import PlanProgress
from holdfast.engine.flow_view import FlowView

_INPUTS = {"Retry", "Signal"}
_SHOWN: list[type[msgspec.Struct]] = [FlowView, PlanProgress, Finding, Pruned, SchemaStatus, Snapshot]


def record_types() -> dict[str, type[msgspec.Struct]]:
    """Return the records by their names."""
    public = {name: getattr(module, name) for module in (holdfast, holdfast.typing) for name in module.__all__}
    read = {name: kind for name, kind in public.items() if name not in _INPUTS and isinstance(kind, type)}
    return {name: kind for name, kind in read.items() if issubclass(kind, msgspec.Struct)} | {
        kind.__name__: kind for kind in _SHOWN
    }
