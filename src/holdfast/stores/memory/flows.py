"""Flows in memory: a list of registrations for each type."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.questions import ListFlows
from holdfast.stores.memory.state import State


class StateFlows:
    """Registrations of flows, by type and time."""

    def __init__(self, state: State) -> None:
        self._state = state

    def of(self, type: str) -> Sequence[FlowDefinition]:
        return self._state.flows.get(type) or ()

    def whole(self, definition: FlowDefinition) -> FlowDefinition:
        return self._state.whole_flow(definition)

    def put(self, definition: FlowDefinition) -> None:
        others = [one for one in self.of(definition.type) if one.registered_at != definition.registered_at]
        self._state.flows[definition.type] = sorted([*others, definition], key=lambda one: one.registered_at)

    def remove(self, definition: FlowDefinition) -> None:
        self._state.flows[definition.type] = [one for one in self.of(definition.type) if one != definition]

    def types(self) -> Sequence[str]:
        return sorted(type for type, known in self._state.flows.items() if len(known) > 1)

    def oldest_run(self, type: str) -> Micros | None:
        created = (one.run.created_at for one in self._state.records.values() if one.run.type == type)
        return min(created, default=None)


def list_flows(state: State, query: ListFlows) -> list[FlowDefinition]:
    known = (one for type in sorted(state.flows) for one in state.flows[type])
    matching = [one for one in known if query.admits(one)][: query.limit]
    return matching if query.with_texts else [one.without_texts() for one in matching]
