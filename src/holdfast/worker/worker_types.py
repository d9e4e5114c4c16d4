"""The types of a worker: the registered types and flows that it executes, including those registered while it runs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from holdfast.core.clock import Micros
from holdfast.core.errors import InvalidRequest
from holdfast.core.hint import Hint
from holdfast.core.intent import matches_type
from holdfast.core.model import TypeOffer
from holdfast.core.ports import Store
from holdfast.runner.definition import Definition
from holdfast.runner.flow_type import FlowType
from holdfast.runner.registry import Registry
from holdfast.worker.flow_library import FLOW_POLL, FlowHost, FlowLibrary

_log = logging.getLogger("holdfast.worker")


class WorkerTypes:
    """The types of a registry, and the flows of the store, that match a worker's patterns. Without patterns, all.

    Without `has_flows`, it leaves flows to others. `flow_poll` is the interval of looks for new flows, if it is not the
    usual one.
    """

    def __init__(
        self,
        registry: Registry,
        patterns: Sequence[str] | None,
        *,
        has_flows: bool = True,
        flow_poll: Micros | None = None,
    ) -> None:
        _check(patterns)
        self._has_flows = has_flows
        self._flow_poll = flow_poll
        self._registry = registry
        self._patterns = None if patterns is None else tuple(patterns)
        self._types: tuple[str, ...] = ()
        self._counted = 0
        self._flows: FlowLibrary | None = None

    def types(self) -> tuple[str, ...]:
        """Return the types of code, then those of flows."""
        count = self._registry.count()
        if count != self._counted:
            self._counted = count
            self._types = tuple(sorted(type for type in self._registry.types() if self.is_wanted(type)))
        return self._types if self._flows is None else (*self._types, *self._flows.types())

    def definition(self, type: str) -> Definition | FlowType:
        """Return the definition of a type that was claimed."""
        found = self._registry.get(type) or (None if self._flows is None else self._flows.get(type))
        assert found is not None, f"claimed {type}, which is not registered"
        return found

    def offers(self) -> list[TypeOffer]:
        """Return the types of code as the store records them. The library of flows offers its own.

        Raises `InvalidRequest` if a pipeline has no steps.
        """
        wanted = (type for type in self._registry.types() if self.is_wanted(type))
        return [self._offer_of(type) for type in sorted(wanted)]

    def _warn_if_none(self, worker: str) -> None:
        """Log a warning if there is nothing to execute."""
        if not self.types():
            wanted = "" if self._patterns is None else f" that matches {', '.join(self._patterns)}"
            text = "worker %s has no registered type%s; it claims nothing until one is registered"
            _log.warning(text, worker, wanted, extra={"worker": worker})

    def is_wanted(self, type: str) -> bool:
        """Return True if a type matches the patterns."""
        return self._patterns is None or any(matches_type(type, pattern) for pattern in self._patterns)

    def _offer_of(self, type: str) -> TypeOffer:
        definition = self._registry.get(type)
        assert definition is not None, f"type {type} is not registered"
        return TypeOffer(name=type, runtime="python", description=definition.description, plan=definition.plan)

    # Flows

    async def start(self, store: Store, host: FlowHost, *, poll: Micros | None) -> None:
        """Learn which flows exist, and keep learning until `stop`. Log a warning if there is nothing to execute."""
        if self._has_flows:
            flow_poll = None if poll is None else self._flow_poll or FLOW_POLL
            self._flows = FlowLibrary(store, host, is_wanted=self.is_wanted, poll=flow_poll)
            await self._flows.start()
        self._warn_if_none(host.name)

    async def stop(self) -> None:
        if self._flows is not None:
            await self._flows.stop()

    @property
    def is_looking(self) -> bool:
        """True while it asks the store for flows."""
        return self._flows is not None and self._flows.is_looking

    def look(self) -> None:
        """Look for flows that were registered since the last look."""
        if self._flows is not None:
            self._flows.look()

    def hear(self, hint: Hint) -> None:
        if self._flows is not None:
            self._flows.hear(hint)


def _check(patterns: object) -> None:
    # A string is also a collection of strings: its characters.
    is_list = (
        isinstance(patterns, Collection)
        and not isinstance(patterns, str)
        and all(isinstance(one, str) for one in patterns)
    )
    if patterns is not None and not is_list:
        raise InvalidRequest(
            f"worker(types={patterns!r}): expected a list of type names or patterns, such as ['billing.*']"
        )
