"""A rehearsal: a script is played, perhaps with a fault, and what came of it is written down for comparison."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Registry, step_info
from holdfast.core.model import Entry, EntryKind
from holdfast.core.ports import Query
from holdfast.core.received import received_in
from holdfast.testing.faults import FaultyStore, When
from holdfast.testing.harness import Harness
from tests.stage import Stage


class Ledger:
    """What step bodies have really done: how often each of them was begun."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, str]] = Counter()

    def note(self, value: Any = None) -> Any:
        """A body, or the beginning of one."""
        info = step_info()
        self.begun[info.run_id, info.location] += 1
        return value


@dataclass(frozen=True)
class Script:
    """Workflows, and what the world does to them. The world must not depend on when things happen."""

    name: str
    build: Callable[[Registry, Ledger], None]
    act: Callable[[Harness], Coroutine[Any, Any, None]]


@dataclass
class Outcome:
    """What came of a play, without what a crash may change: times, attempts, ids, the order of concurrent things."""

    runs: dict[str, Any] = field(default_factory=dict)
    begun: dict[tuple[str, str], int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    crashes: int = 0
    orphans: list[str] = field(default_factory=list)


Fault = tuple[int, When]


async def play(
    script: Script, kind: str, folder: Path, *, crashes: tuple[Fault, ...] = (), failures: tuple[Fault, ...] = ()
) -> Outcome:
    """Play a script to its end; whenever a worker is cut off it vanishes, and another takes over."""
    stage = Stage(kind, folder)
    store = FaultyStore(stage.store())
    for number, when in crashes:
        store.crash(number, when=when)
    for number, when in failures:
        store.fail(number, when=when)
    app, ledger, outcome = Registry(), Ledger(), Outcome()
    script.build(app, ledger)
    async with Harness(app, always_replay=stage.is_replaying, clock=stage.clock, store=store, patience_seconds=5) as h:
        acting = asyncio.create_task(script.act(h))
        while not acting.done():
            crash = asyncio.create_task(store.crashed.wait())
            await asyncio.wait([acting, crash], return_when=asyncio.FIRST_COMPLETED)
            crash.cancel()
            if store.crashed.is_set():
                outcome.crashes += 1
                await h.crash_worker()
                store.revive()
                await h.start_worker()
        await acting
        outcome.calls = list(store.calls)
        await write_down(h, ledger, outcome)
    return outcome


async def write_down(h: Harness, ledger: Ledger, outcome: Outcome) -> None:
    details = {one.run.id: one for one in await h.store.list(Query(limit=1_000))}

    def path(run_id: str) -> str:
        run = details[run_id].run
        return run_id if run.parent_id is None else f"{path(run.parent_id)} > {run.parent_location}"

    for run_id, one in details.items():
        history = sorted(
            (entry.location, entry.kind.value, entry.state.value, _result(entry), entry.error and str(entry.error))
            for entry in await h.store.history(run_id)
        )
        run = one.run
        error = None if run.error is None else str(run.error)
        waits = sorted((wait.location, wait.kind.value) for wait in one.waits)
        outcome.runs[path(run_id)] = (run.state.value, run.result, error, history, one.values, waits)
    outcome.begun = {(path(run_id), location): times for (run_id, location), times in ledger.begun.items()}
    outcome.orphans = list(await h.store.orphans(10))


def _result(entry: Entry) -> str | None:
    """The result of an entry. Of what was received name and payload only: ids and instants differ from play to play."""
    if entry.kind in (EntryKind.MESSAGE, EntryKind.EVENT) and entry.is_settled:
        return str([(one.name, one.payload) for one in received_in(entry)])
    return entry.result


def compare(undisturbed: Outcome, disturbed: Outcome) -> None:
    """The same end, and each body begun at most once more for each crash."""
    assert disturbed.orphans == []
    assert disturbed.runs.keys() == undisturbed.runs.keys()
    for name, facts in undisturbed.runs.items():
        assert disturbed.runs[name] == facts, name
    assert disturbed.begun.keys() >= undisturbed.begun.keys()
    for body, times in disturbed.begun.items():
        assert times <= undisturbed.begun.get(body, 1) + disturbed.crashes, (body, times)
