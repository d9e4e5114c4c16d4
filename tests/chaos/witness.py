"""The witness: searches the store for forbidden states during the storm, and collects everything at the end.

It only reads, over its own connection, and an unreachable store is not a finding.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress

from holdfast import Holdfast, StoreUnavailable
from holdfast.app import session_of
from holdfast.core.clock import SECOND
from holdfast.core.limits import type_slot
from holdfast.core.model import EntryState
from holdfast.core.questions import (
    PAGE_LIMIT,
    CountLeases,
    CountReady,
    CountRuns,
    CountSlots,
    Details,
    FindOrphans,
    Query,
)
from holdfast.core.states import ENDS, LIVE
from tests.chaos import load
from tests.chaos.evidence import Delay, Remark, Sighting, Story

PAUSE_SECONDS = 0.5
_SOME = 10
_WIDTH = 8


class Witness:
    """The observations so far. `known` are the ids of workers by process, `slowest` the slowest takeover."""

    def __init__(self, hf: Holdfast, seed: str) -> None:
        self._store = session_of(hf).store
        self._chance = random.Random(f"{seed} witness")
        self._sightings: dict[tuple[str, str], Sighting] = {}
        self.killed: dict[str, float] = {}
        self.known: dict[int, str] = {}
        self.delays: set[Delay] = set()
        self.remarks: list[Remark] = []
        self.checks = 0
        self.ended = 0
        self.slowest = 0.0

    @property
    def sightings(self) -> list[Sighting]:
        return list(self._sightings.values())

    async def watch(self) -> None:
        """Search repeatedly, until it is cancelled."""
        while True:
            with suppress(StoreUnavailable):
                await self.check()
            await asyncio.sleep(PAUSE_SECONDS)

    async def check(self) -> None:
        store = self._store
        self.known |= {worker.pid: worker.id for worker in await store.workers()}
        self.ended = sum(
            n for states in (await store.stats(CountRuns())).values() for s, n in states.items() if s.is_end
        )
        now = time.time()
        dead = [now - self.killed[worker] for worker in await store.stats(CountLeases()) if worker in self.killed]
        self.slowest = max([self.slowest, *dead])
        self.remarks += [
            Remark("I8", f"run {run_id} is an orphan") for run_id in await store.stats(FindOrphans(limit=_SOME))
        ]
        for slot in await store.stats(CountSlots()):
            limit = _LIMITS.get(slot.name)
            if limit is not None and slot.used > limit:
                self.remarks.append(Remark("I9", f"{slot.used} have the slot {slot.name}, not {limit}"))
        for details in await store.list(Query(states=ENDS, limit=_SOME * 5)):
            self._note(Sighting.of_end(details.run))
        live = await store.list(Query(states=LIVE, limit=PAGE_LIMIT))
        for details in self._chance.sample(live, min(_SOME, len(live))):
            await self._check_run(details.run.id)
        self.checks += 1

    async def _check_run(self, run_id: str) -> None:
        for entry in await self._store.history(run_id):
            if entry.is_settled:
                self._note(Sighting.of_entry(run_id, entry))
            elif entry.state is EntryState.RETRYING and entry.retry_at is not None:
                self.delays.add(Delay(run_id, entry.location, entry.attempts, entry.retry_at / SECOND))

    def _note(self, sighting: Sighting) -> None:
        self._sightings.setdefault((sighting.run_id, sighting.location), sighting)

    async def stories(self) -> dict[str, Story]:
        """Return everything that the store knows of every run."""
        found: dict[str, Story] = {}
        query = Query(limit=PAGE_LIMIT)
        while page := await self._store.list(query):
            for first in range(0, len(page), _WIDTH):
                some = page[first : first + _WIDTH]
                found |= {story.run.id: story for story in await asyncio.gather(*map(self._story, some))}
            last = page[-1].run
            query = Query(limit=PAGE_LIMIT, before=(last.created_at, last.id))
        return found

    async def _story(self, details: Details) -> Story:
        entries, facts = await self._store.history(details.run.id), await self._store.audit(details.run.id)
        return Story(details.run, details.waits, tuple(entries), tuple(facts))

    async def leftovers(self) -> Sequence[Remark]:
        """Return what exists although all is over."""
        store = self._store
        found = [
            f"worker {worker} still holds {count} runs" for worker, count in (await store.stats(CountLeases())).items()
        ]
        found += [f"the slot {slot.name} is still used by {slot.used}" for slot in await store.stats(CountSlots())]
        found += [f"{late.count} runs of {late.type} are still ready" for late in await store.stats(CountReady())]
        found += [f"run {run_id} is an orphan" for run_id in await store.stats(FindOrphans(limit=_SOME))]
        found += [one.text for one in await store.check() if one.level == "problem"]
        return [Remark("I8", text) for text in found]


_LIMITS = {type_slot(type): limit for type, limit in load.CONCURRENCY.items()}
