"""A rehearsal: a script is played, perhaps with a fault, and its outcome is recorded for comparison."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Registry
from holdfast.app import session_of
from holdfast.core.entries import received_in
from holdfast.core.errors import StoreUnavailable
from holdfast.core.location import is_for_people
from holdfast.core.model import Entry, EntryKind
from holdfast.core.ports import Store
from holdfast.core.questions import FindOrphans, Query
from holdfast.testing.faults import FaultyStore, When
from holdfast.testing.harness import Harness
from holdfast.testing.patience import GUARD_SECONDS
from tests.programs.ledger import EffectLedger
from tests.stage import Stage


@dataclass(frozen=True)
class Script:
    """Workflows, and a world that acts on them. The world must not depend on timing."""

    name: str
    build: Callable[[Registry, EffectLedger], None]
    act: Callable[[Harness], Coroutine[Any, Any, None]]


@dataclass
class Outcome:
    """The outcome of a play, without parts that a crash may change: times, attempts, ids, the order of concurrency."""

    runs: dict[str, Any] = field(default_factory=dict)
    begun: dict[tuple[str, str], int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    crashes: int = 0
    orphans: list[str] = field(default_factory=list)


Fault = tuple[int, When]


@dataclass(frozen=True)
class Faults:
    """The faults of a play, by the numbers of a worker's calls of the store.

    `crashes` cut the worker off, `failures` are lost calls or answers, `restarts` make it release its runs and stop.
    """

    crashes: tuple[Fault, ...] = ()
    failures: tuple[Fault, ...] = ()
    restarts: tuple[int, ...] = ()


class Rehearsal:
    """A script on a stage, with the faults to inject. `theatre` replaces the store of the stage and the faults."""

    def __init__(self, script: Script, stage: Stage, faults: Faults, theatre: Theatre | None = None) -> None:
        self.script = script
        self.ledger = EffectLedger()
        self.crashes = 0
        self.store = theatre or Theatre(stage.store(), faults)
        app = Registry()
        script.build(app, self.ledger)
        self.harness = _Hall(
            app, always_replay=stage.is_replaying, clock=stage.clock, store=self.store, patience_seconds=GUARD_SECONDS
        )
        self.harness.is_closed = self.store.disturbed.is_set

    async def play(self) -> None:
        """Play the script to its end. Each worker that is cut off vanishes, and another takes over."""
        acting = asyncio.create_task(self.script.act(self.harness))
        try:
            while not acting.done():
                disturbed = asyncio.create_task(self.store.disturbed.wait())
                await asyncio.wait([acting, disturbed], return_when=asyncio.FIRST_COMPLETED)
                disturbed.cancel()
                if self.store.disturbed.is_set():
                    await self._replace_worker()
            await acting
        finally:
            acting.cancel()

    async def _replace_worker(self) -> None:
        self.crashes += 1
        if self.store.crashed.is_set():
            await self.harness.crash_worker()
            self.store.revive()
        else:
            await self.harness.stop_worker()
        with contextlib.suppress(StoreUnavailable):  # the new worker could not register: the next one tries
            await self.harness.start_worker()
            if not self.store.crashed.is_set():  # stopped again already
                self.store.disturbed.clear()


class _Hall(Harness):
    """A harness whose time stops while there is no worker, so that no limit of days expires before the next one.

    The script waits too. A call that was carried out although its worker is gone may still be under way, and what the
    script does next, such as a deploy of other code, must come after it.
    """

    is_closed: Callable[[], bool]

    async def settle(self) -> None:
        await super().settle()
        while self.is_closed():
            await asyncio.sleep(0.0002)
            await super().settle()

    async def skip(self) -> bool:
        return False if self.is_closed() else await super().skip()


class Theatre(FaultyStore):
    """A store with faults that says when the worker has to be replaced."""

    def __init__(self, store: Store, faults: Faults) -> None:
        super().__init__(store)
        self.disturbed = asyncio.Event()
        self._restarts = set(faults.restarts)
        for number, when in faults.crashes:
            self.crash(number, when=when)
        for number, when in faults.failures:
            self.fail(number, when=when)

    def cut_off(self) -> None:
        """Let the worker reach the store no more, until it is replaced."""
        self.crashed.set()
        self.disturbed.set()

    def _begin(self, name: str) -> bool:
        try:
            return super()._begin(name)
        finally:
            if self.crashed.is_set() or len(self.calls) in self._restarts:
                self._restarts.discard(len(self.calls))
                self.disturbed.set()


async def play(
    script: Script,
    kind: str,
    folder: Path,
    *,
    url: str = "",
    crashes: tuple[Fault, ...] = (),
    failures: tuple[Fault, ...] = (),
) -> Outcome:
    """Play a script to its end and return its outcome. Each play has its own folder or database."""
    return await perform(Rehearsal(script, Stage(kind, folder, url), Faults(crashes, failures)))


async def perform(rehearsal: Rehearsal) -> Outcome:
    """Play a rehearsal to its end and return its outcome."""
    outcome = Outcome()
    async with rehearsal.harness as h:
        await rehearsal.play()
        outcome.crashes = rehearsal.crashes
        outcome.calls = list(rehearsal.store.calls)
        await write_down(h, rehearsal.ledger, outcome)
    return outcome


async def write_down(h: Harness, ledger: EffectLedger, outcome: Outcome) -> None:
    details = {one.run.id: one for one in await session_of(h).store.list(Query(limit=1_000))}

    def path(run_id: str) -> str:
        run = details[run_id].run
        # A child that outlives its parent's generation has no location; the script has to tag it.
        place = run.tags.get("place", run.parent_location)
        return run_id if run.parent_id is None else f"{path(run.parent_id)} > {place}"

    for run_id, one in details.items():
        history = sorted(
            (_place(entry), entry.kind.value, entry.state.value, _result(entry), entry.error and str(entry.error))
            for entry in await session_of(h).store.history(run_id)
            if entry.kind is not EntryKind.SNAPSHOT  # crashes change the number of turns
        )
        run = one.run
        error = None if run.error is None else str(run.error)
        waits = sorted((wait.location, wait.kind.value) for wait in one.waits)
        outcome.runs[path(run_id)] = (run.state.value, run.result, error, history, one.values, waits)
    outcome.begun = {(path(run_id), location): times for (run_id, location), times in ledger.begun.items()}
    outcome.orphans = list(await session_of(h).store.stats(FindOrphans(limit=10)))


def _place(entry: Entry) -> str:
    """Return the location of an entry. That of an effect of a flow ends in its position, which counts turns, too."""
    is_effect = entry.kind in (EntryKind.SEND, EntryKind.EMIT, EntryKind.CANCEL)
    is_flow = is_for_people(entry.location)
    return entry.location.rpartition("#")[0] if is_effect and is_flow else entry.location


def _result(entry: Entry) -> str | None:
    """Return the result of an entry. For messages only name and payload: ids and times differ between plays."""
    if entry.kind in (EntryKind.MESSAGE, EntryKind.EVENT) and entry.is_settled:
        return str([(one.name, one.payload) for one in received_in(entry)])
    return entry.result


def compare(undisturbed: Outcome, disturbed: Outcome) -> None:
    """Check for the same end, and at most one more start of each body per crash."""
    assert disturbed.orphans == []
    assert disturbed.runs.keys() == undisturbed.runs.keys()
    for name, facts in undisturbed.runs.items():
        assert disturbed.runs[name] == facts, name
    assert disturbed.begun.keys() >= undisturbed.begun.keys()
    for body, times in disturbed.begun.items():
        assert times <= undisturbed.begun.get(body, 1) + disturbed.crashes, (body, times)
