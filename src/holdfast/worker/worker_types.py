"""The types of a worker: the registered types and the flows that it executes, also those that come while it runs.

A worker needs no file to execute a flow. It learns of new flows by hints and by polling, and loads a program when the
first run needs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from holdfast.core.clock import SECOND, Clock, Micros
from holdfast.core.commands import OfferTypes
from holdfast.core.errors import InvalidRequest, Unreadable
from holdfast.core.flow_definitions import FLOW_RUNTIME, FlowDefinition, definition_at
from holdfast.core.intent import matches_type
from holdfast.core.model import Run, TypeOffer
from holdfast.core.news import Hint
from holdfast.core.outage import Outage
from holdfast.core.ports import Store
from holdfast.core.questions import PAGE_LIMIT, ListFlows
from holdfast.flows.program import Program
from holdfast.runner.definition import Definition
from holdfast.runner.flow_turn import FlowCode, FlowType
from holdfast.runner.registry import Registry
from holdfast.worker.background import BackgroundJob

FLOW_POLL: Micros = SECOND
"""Interval at which a worker looks for new flows, for the case that a hint is lost."""

PROGRAM_LIMIT = 1_000
"""Maximum number of programs in memory. The program that was needed least recently goes first."""

BROKEN_PATIENCE: Micros = SECOND
"""Time until a program that could not be read is loaded again. Its runs are blocked, and are tried later than that."""

_log = logging.getLogger("holdfast.worker")

_Key = tuple[str, str]
"""Type and version."""


class FlowHost(Protocol):
    """A worker as its flow library sees it."""

    name: str

    @property
    def clock(self) -> Clock: ...

    def on_flows(self, run_ids: Sequence[str], *, has_new: bool) -> None:
        """Claim runs of new flows, and let runs continue whose programs were loaded. Some may ask again.

        Called at the end of every round: a worker is not idle before.
        """
        ...


class FlowLibrary(BackgroundJob[None]):
    """Finds the flows of a worker. `is_wanted` says if a type matches the patterns of the worker."""

    def __init__(self, store: Store, host: FlowHost, *, is_wanted: Callable[[str], bool], poll: Micros | None) -> None:
        super().__init__(host.clock)
        self._store = store
        self._host = host
        self._matches = is_wanted
        self._poll = poll
        self._registrations: dict[str, list[FlowDefinition]] = {}
        self._types: dict[str, FlowType] = {}
        self._codes: OrderedDict[_Key, FlowCode] = OrderedDict()
        self._broken: dict[_Key, tuple[Micros, str]] = {}
        self._needed: dict[_Key, None] = {}
        self._waiting: dict[str, None] = {}
        self._refreshed_at: Micros = -1
        self._refreshed_for: set[str] = set()
        self._has_new = False
        self._outage = Outage(_log, "cannot look for flows; trying again", "looking for flows works again")

    def types(self) -> Sequence[str]:
        """Return the types of flows that match the patterns of the worker."""
        return tuple(self._types)

    def get(self, type: str) -> FlowType | None:
        return self._types.get(type)

    # Finding

    def code_of(self, run: Run, version: str | None) -> FlowCode | None:
        """Return the code of a run. None while it is being loaded: the host is called when it is there."""
        if version is None and self._refreshed_at <= run.created_at and run.id not in self._refreshed_for:
            self._wait(run)  # a version that was registered before the run may not be known yet
            return None
        if version is None:
            found = definition_at(run.created_at, self._registrations.get(run.type, ()))
            if found is None:
                raise Unreadable(f"the store has no definition of the flow {run.type!r}")
            version = found.version
        key = run.type, version
        if key in self._codes:
            self._codes.move_to_end(key)
            return self._codes[key]
        if key in self._broken:
            at, why = self._broken[key]
            if self._clock.now() < at + BROKEN_PATIENCE:
                raise Unreadable(why)
            del self._broken[key]
        self._needed[key] = None
        self._wait(run)
        return None

    def _wait(self, run: Run) -> None:
        self._waiting[run.id] = None
        self.wake()

    # Reading the store

    def on_hint(self, hint: Hint) -> None:
        """Look for new flows if a hint names a type that is not known here."""
        if any(type not in self._types and self._matches(type) for type in hint.ready):
            self.wake()

    async def start(self) -> None:
        """Learn which flows exist, before the first claim. The first `look` begins to poll.

        The rest of the worker may not have started yet, so the host hears of nothing.
        """
        await self._refresh()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if self._is_stopped:
            return
        if (error := task.exception()) is not None:
            _log.error("looking for flows failed", exc_info=error)
        waiting, self._waiting = list(self._waiting), {}
        has_new, self._has_new = self._has_new, False
        self._host.on_flows(waiting, has_new=has_new)
        if self._is_wanted:
            self.wake()
        elif self._poll is not None:
            self.wake_by(self._clock.now() + self._poll)

    async def _round(self) -> None:
        await self._outage.retry(self._refresh)
        while self._needed:
            key = next(iter(self._needed))
            await self._outage.retry(lambda key=key: self._load(key))  # type: ignore[misc]
            self._needed.pop(key, None)

    async def _refresh(self) -> None:
        """Read all registrations, without their texts."""
        asked_at, asked_for = self._clock.now(), set(self._waiting)
        found: dict[str, list[FlowDefinition]] = {}
        after = ("", 0)
        while True:
            page = await self._store.catalog(ListFlows(after=after, limit=PAGE_LIMIT))
            for one in page:
                found.setdefault(one.type, []).append(one)
            if len(page) < PAGE_LIMIT:
                break
            after = (page[-1].type, page[-1].registered_at)
        self._registrations = found
        self._refreshed_at, self._refreshed_for = asked_at, asked_for
        await self._offer([one[-1] for type, one in found.items() if type not in self._types and self._matches(type)])

    async def _offer(self, discovered: Sequence[FlowDefinition]) -> None:
        """Tell the store that this worker executes these flows."""
        if not discovered:
            return
        offers = [TypeOffer(name=one.type, runtime=FLOW_RUNTIME, description=one.description) for one in discovered]
        await self._store.apply(OfferTypes(worker=self._host.name, offers=offers))
        for one in discovered:
            self._types[one.type] = FlowType(one.type, self, one.description)
        self._has_new = True

    async def _load(self, key: _Key) -> None:
        """Load one program. A program that this worker cannot execute is remembered as broken."""
        type, version = key
        found = await self._store.catalog(ListFlows(type=type, version=version, with_texts=True, limit=1))
        try:
            if not found:
                raise Unreadable(f"the store has no version {version[:12]} of the flow {type!r}")
            code = FlowCode(found[0].version, Program.decode(found[0].program), found[0].source)
        except InvalidRequest as error:
            self._broken[key] = self._clock.now(), str(error)
            return
        self._codes[key] = code
        if len(self._codes) > PROGRAM_LIMIT:
            self._codes.popitem(last=False)


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
        wanted = sorted(type for type in self._registry.types() if self.is_wanted(type))
        found = [(type, self._registry.definition(type)) for type in wanted]
        return [
            TypeOffer(name=type, runtime="python", description=one.description, plan=one.plan) for type, one in found
        ]

    def is_wanted(self, type: str) -> bool:
        """Return True if a type matches the patterns."""
        return self._patterns is None or any(matches_type(type, pattern) for pattern in self._patterns)

    # Flows

    async def start(self, store: Store, host: FlowHost, *, poll: Micros | None) -> None:
        """Learn which flows exist, and keep learning until `stop`. Log a warning if there is nothing to execute."""
        if self._has_flows:
            flow_poll = None if poll is None else self._flow_poll or FLOW_POLL
            self._flows = FlowLibrary(store, host, is_wanted=self.is_wanted, poll=flow_poll)
            await self._flows.start()
        if not self.types():
            wanted = "" if self._patterns is None else f" that matches {', '.join(self._patterns)}"
            text = "worker %s has no registered type%s; it claims nothing until one is registered"
            _log.warning(text, host.name, wanted, extra={"worker": host.name})

    async def stop(self) -> None:
        if self._flows is not None:
            await self._flows.stop()

    @property
    def is_running(self) -> bool:
        """True while it asks the store for flows."""
        return self._flows is not None and self._flows.is_running

    def load_flows(self) -> None:
        """Ask the store for flows that were registered since it was last asked."""
        if self._flows is not None:
            self._flows.wake()

    def on_hint(self, hint: Hint) -> None:
        if self._flows is not None:
            self._flows.on_hint(hint)


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
