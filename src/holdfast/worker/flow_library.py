"""The flow library of a worker: the flows that the store has, and their programs, as far as runs need them.

A worker needs no file to execute a flow. It learns of new flows by hints and by polling, and loads a program when the
first run needs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.core.clock import SECOND, Clock, Micros, Timer
from holdfast.core.commands import OfferTypes
from holdfast.core.errors import InvalidRequest, Unreadable
from holdfast.core.flow_definitions import FLOW_RUNTIME, FlowDefinition, definition_at
from holdfast.core.hint import Hint
from holdfast.core.model import Run, TypeOffer
from holdfast.core.outage import Outage
from holdfast.core.ports import Store
from holdfast.core.questions import PAGE_LIMIT, ListFlows
from holdfast.flows.program import Program
from holdfast.runner.flow_type import FlowCode, FlowType

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

    def flows_looked(self, run_ids: Sequence[str], *, has_new: bool) -> None:
        """Claim runs of new flows, and let runs continue whose programs were loaded. Some may ask again.

        Called at the end of every look: a worker is not idle before.
        """
        ...


class FlowLibrary:
    """Finds the flows of a worker. `is_wanted` says if a type matches the patterns of the worker."""

    def __init__(self, store: Store, host: FlowHost, *, is_wanted: Callable[[str], bool], poll: Micros | None) -> None:
        self._store = store
        self._host = host
        self._clock = host.clock
        self._is_wanted = is_wanted
        self._poll = poll
        self._registrations: dict[str, list[FlowDefinition]] = {}
        self._types: dict[str, FlowType] = {}
        self._codes: OrderedDict[_Key, FlowCode] = OrderedDict()
        self._broken: dict[_Key, tuple[Micros, str]] = {}
        self._needed: dict[_Key, None] = {}
        self._waiting: dict[str, None] = {}
        self._looked_at: Micros = -1
        self._looked_for: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._is_wanted_again = False
        self._has_new = False
        self._is_stopped = False
        self._outage = Outage(_log, "cannot look for flows; trying again", "looking for flows works again")

    @property
    def is_looking(self) -> bool:
        """True while it asks the store."""
        return self._task is not None

    def types(self) -> Sequence[str]:
        """Return the types of flows that match the patterns of the worker."""
        return tuple(self._types)

    def get(self, type: str) -> FlowType | None:
        return self._types.get(type)

    # Finding

    def code_of(self, run: Run, version: str | None) -> FlowCode | None:
        """Return the code of a run. None while it is being loaded: the host will be told about the run."""
        if version is None and self._looked_at <= run.created_at and run.id not in self._looked_for:
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
        self.look()

    # Looking

    def hear(self, hint: Hint) -> None:
        """Look for new flows if a hint names a type that is not known here."""
        if any(type not in self._types and self._is_wanted(type) for type in hint.ready):
            self.look()

    def look(self) -> None:
        """Ask the store for new flows and for needed programs."""
        if self._is_stopped:
            return
        if self._task is not None:
            self._is_wanted_again = True
            return
        self._is_wanted_again = False
        self._disarm()
        self._task = asyncio.get_running_loop().create_task(self._look())
        self._task.add_done_callback(self._looked)

    async def start(self) -> None:
        """Learn which flows exist, before the first claim. The first `look` begins to poll.

        The rest of the worker may not have started yet, so the host hears of nothing.
        """
        await self._refresh()

    async def stop(self) -> None:
        self._is_stopped = True
        self._disarm()
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled() or self._is_stopped:
            return
        if (error := task.exception()) is not None:
            _log.error("looking for flows failed", exc_info=error)
        waiting, self._waiting = list(self._waiting), {}
        has_new, self._has_new = self._has_new, False
        self._host.flows_looked(waiting, has_new=has_new)
        if self._is_wanted_again:
            self.look()
        else:
            self._arm()

    def _arm(self) -> None:
        if self._poll is not None and self._timer is None and not self._is_stopped:
            self._timer = self._clock.call_at(self._clock.now() + self._poll, self.look)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _look(self) -> None:
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
        self._looked_at, self._looked_for = asked_at, asked_for
        await self._offer([one[-1] for type, one in found.items() if type not in self._types and self._is_wanted(type)])

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
