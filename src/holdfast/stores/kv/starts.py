"""Starts: most are written in one trip, on the assumption that neither the runs nor their keys exist yet."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.checkpoint import Created, CreatedRun, LeaseRequest
from holdfast.core.clock import Micros
from holdfast.core.model import Intent
from holdfast.core.news import News
from holdfast.stores.kv import names
from holdfast.stores.kv.checkpoints import HeldRuns
from holdfast.stores.kv.decision import Decisions
from holdfast.stores.kv.driver import AllFields, Driver, Fields, Partition
from holdfast.stores.kv.runs import head_of
from holdfast.stores.kv.unit_of_work import KvUnit
from holdfast.stores.kv.workspace import KnownPartitions
from holdfast.stores.operations import leases, starts

BASE = Fields(names.META, ("base",))
RULED = AllFields(names.RULED)


class Starts:
    """Creates runs, and remembers the partitions that each start reads and that seldom change."""

    def __init__(self, driver: Driver, decisions: Decisions, held: HeldRuns) -> None:
        self._driver = driver
        self._decisions = decisions
        self._held = held
        self._seldom: dict[Fields | AllFields, Partition] = {}

    async def create(self, intents: Sequence[Intent], lease: LeaseRequest | None, now: Micros) -> tuple[Created, News]:
        """Create runs. `now` is the time as this process knows it."""

        def operation(unit: KvUnit, at: Micros) -> Created:
            created = starts.create(unit, intents, lease, at)
            return created if lease is None else _with_won_leases(unit, created, lease)

        reads = self._reads(intents)
        decided = await self._decisions.decide(operation, reads, assumed=self._assumed(reads, now))
        known = decided.space.known
        for read in (BASE, RULED):
            if known.has(read):
                self._seldom[read] = Partition(known.versions[read.partition], known.whole(read.partition))
        for run in decided.answer.runs:
            if run.lease is not None:
                head, history = (decided.version(name(run.run_id)) for name in (names.head, names.history))
                self._held.keep_lease(run.lease, (), head, history)
        return decided.answer, decided.news

    def _reads(self, intents: Sequence[Intent]) -> list[Fields | AllFields]:
        keys = [intent.key for intent in intents if intent.key is not None]
        runs = [head_of(intent.id) for intent in intents]
        return [RULED, *runs, *(Fields(names.key(key), ("id",)) for key in keys)]

    def _assumed(self, reads: Sequence[Fields | AllFields], now: Micros) -> KnownPartitions | None:
        """Return what a start of new runs finds; None if the partitions that seldom change were never read."""
        if BASE not in self._seldom or RULED not in self._seldom:
            return None
        known = KnownPartitions()
        known.now = now
        for read in reads:
            if read is not RULED:
                known.put_absent(read.partition)
        for read, partition in self._seldom.items():
            known.put(read, partition)
        return known


def _with_won_leases(unit: KvUnit, created: Created, lease: LeaseRequest) -> Created:
    """Return the answer with the leases of an earlier attempt, whose answer was lost: the caller holds these runs."""
    runs: list[CreatedRun] = []
    for one in created.runs:
        run = unit.runs.get(one.run_id) if unit.is_repeat and not one.created else None
        if run is not None and (run.worker, run.claim_id) == (lease.worker, lease.claim_id):
            whole = unit.runs.whole(run.id) or run
            runs.append(replace(one, created=True, lease=leases.lease_of(unit, whole)))
        elif one.lease is not None:
            stored = unit.runs.get(one.run_id)  # its token may have grown beyond those of earlier epochs
            runs.append(one if stored is None else replace(one, lease=replace(one.lease, run=stored)))
        else:
            runs.append(one)
    return replace(created, runs=tuple(runs))
