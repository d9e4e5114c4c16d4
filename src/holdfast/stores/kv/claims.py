"""Claims: how workers get runs. An engine may choose and lease by itself; types with limits are always decided here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, cast

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Claimed, ClaimRequest
from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, Unreadable
from holdfast.core.limits import PARKED_AT_ONCE, parked_at
from holdfast.core.location import PEOPLE_PREFIX
from holdfast.core.model import AuditFact, Lease, Run, Wait
from holdfast.core.states import RunState
from holdfast.core.wire import reason_of
from holdfast.stores.kv import names
from holdfast.stores.kv.decision import Decisions
from holdfast.stores.kv.driver import AllFields, ClaimedRun, Driver, Fields, Lowest, Part, Partition, Range, Read
from holdfast.stores.kv.histories import arrivals_of, fact_line, leased_of
from holdfast.stores.kv.limits import OFF
from holdfast.stores.kv.names import entry_changes, fields_of, run_of
from holdfast.stores.kv.reads import marked_run
from holdfast.stores.kv.runs import FAILURES, OddRun, head_of, waits_of
from holdfast.stores.kv.unit_of_work import KvUnit
from holdfast.stores.operations import leases

SUSPECTS = 16
"""Number of suspect runs that a claim loads of each lane. It wins only one, but may have to park others first."""
OWN_RUNS = 64
"""Number of held runs of a lane that a claim examines for one of another worker."""


class LeasedRun(NamedTuple):
    """A lease, with what the store remembers of the run: its waits, and the versions of its head and history."""

    lease: Lease
    waits: tuple[Wait, ...]
    head: int
    history: int


async def claim(decisions: Decisions, request: ClaimRequest) -> tuple[Claimed, list[LeasedRun]]:
    """Lease due runs by the shared operations, which know the limits."""
    more = [False]

    def operation(unit: KvUnit, now: Micros) -> tuple[Claimed, list[tuple[Wait, ...]]]:
        claimed, runs = _ClaimOperation(unit, request, now, is_deep=more[0]).claim()
        return claimed, [tuple(unit.waits.of(run.id)) for run in runs]

    while True:
        reads: list[Read] = [AllFields(names.RULED), *(Range(names.lanes(type)) for type in request.types)]
        try:
            decided = await decisions.decide(operation, reads)
        except _NeedsMore:
            more[0] = True
            continue
        claimed, all_waits = decided.answer
        runs = [
            LeasedRun(
                lease,
                waits,
                decided.version(names.head(lease.run.id)),
                decided.version(names.history(lease.run.id)),
            )
            for lease, waits in zip(claimed.leases, all_waits, strict=True)
        ]
        return claimed, runs


class _NeedsMore(Exception):
    """Raised if a claim got past the runs that it has loaded, because limits parked many of them."""


class _ClaimOperation:
    """One claim on loaded lanes."""

    def __init__(self, unit: KvUnit, request: ClaimRequest, now: Micros, *, is_deep: bool) -> None:
        self._unit = unit
        self._space = unit.space
        self._request = request
        self._now = now
        self._depth = request.limit + PARKED_AT_ONCE if is_deep else request.limit + 1
        self._is_deep = is_deep
        self._is_cut = False
        """True if a lane has more due runs than were loaded, and more can be."""

    def claim(self) -> tuple[Claimed, list[Run]]:
        is_repeat = self._request.is_repeat or self._unit.is_repeat
        if is_repeat and (won := self._won_before()):
            return self._claimed(won, self._now, has_more=False), won
        lanes = self._lanes()
        due = self._due(lanes)
        chosen, has_more = leases.choose_within_limits(self._unit, leases.queue_of(due), self._request, self._now)
        if self._is_cut and any(parked_at(self._unit.waits.of(run.id)) is not None for run in due):
            # The runs behind those that were loaded may come before those that were chosen.
            raise _NeedsMore
        held: list[Run] = []
        for run in chosen:
            leases.hold(self._unit, self._unit.runs.raised(run), self._request, self._now)
            after = self._unit.runs.get(run.id)
            assert after is not None
            held.append(after)
        next_ready_at = self._now if len(held) >= self._request.limit else self._next_ready_at(lanes)
        return self._claimed(held, next_ready_at, has_more=has_more), held

    def _won_before(self) -> list[Run]:
        """Return the runs that an earlier attempt at this claim has won. Its answer was lost."""
        request = self._request
        run_ids = self._space.range(Range(names.held_by(request.worker)))
        self._space.expect(head_of(run_id) for run_id in run_ids)
        runs = [run for run in map(self._unit.runs.get, run_ids) if run is not None and run.type in request.types]
        return [run for run in runs if run.claim_id == request.id and run.worker == request.worker]

    def _lanes(self) -> list[str]:
        """Return the lanes of the types that are not disabled."""
        ruled = self._space.whole(names.RULED)
        types = [type for type in dict.fromkeys(self._request.types) if ruled.get(type) != OFF]
        self._space.expect(Range(names.lanes(type)) for type in types)
        return [f"Q:{kind}:{type}" for type in types for kind in self._space.range(Range(names.lanes(type)))]

    def _due(self, lanes: Sequence[str]) -> list[Run]:
        reads = [Lowest(lane, self._count(lane), is_due=True) for lane in lanes if self._count(lane)]
        self._space.expect(reads)
        found = [cast("list[tuple[str, int]]", self._space.ask(read)) for read in reads]
        self._is_cut = not self._is_deep and any(len(members) >= self._depth for members in found)
        run_ids = [member for members in found for member, _ in members]
        self._space.expect(head_of(run_id) for run_id in run_ids)
        runs = [run for run in map(self._unit.runs.get, run_ids) if run is not None]
        return [run for run in runs if rules.is_due(run, self._now)]

    def _count(self, lane: str) -> int:
        is_suspect = lane.startswith(f"Q:{names.SUSPECT_LANE}:")
        return (SUSPECTS if self._request.may_suspect else 0) if is_suspect else self._depth

    def _next_ready_at(self, lanes: Sequence[str]) -> Micros | None:
        held = (f"Q:{names.HELD_LANE}:", f"Q:{names.SUSPECT_LANE}:")
        # Runs that this claim leases are in front of their lanes, so read one more than those.
        reads = [Lowest(lane, OWN_RUNS + self._depth if lane.startswith(held) else self._depth + 1) for lane in lanes]
        self._space.expect(reads)
        members = [one for read in reads for one in cast("list[tuple[str, int]]", self._space.ask(read))]
        self._space.expect(head_of(member) for member, _ in members)
        times: list[Micros] = []
        for member, _ in members:
            run = self._unit.runs.get(member)
            if run is not None and run.ready_at is not None and run.worker != self._request.worker:
                times.append(run.ready_at)
        times += [
            run.ready_at
            for run in self._unit.runs.known()
            if run.ready_at is not None and run.type in self._request.types and run.worker is None
        ]
        return min(times, default=None)

    def _claimed(self, runs: Sequence[Run], next_ready_at: Micros | None, *, has_more: bool) -> Claimed:
        reads: list[Read] = []
        for run in runs:
            reads.append(Fields(names.head(run.id), (names.PAYLOAD,)))
            reads.append(AllFields(names.history(run.id), PEOPLE_PREFIX))
            if run.arrivals:
                reads.append(AllFields(names.inbox(run.id)))
        self._space.expect(reads)
        whole = [self._unit.runs.whole(run.id) or run for run in runs]
        leased = tuple(leases.lease_of(self._unit, run) for run in whole)
        return Claimed(leases=leased, next_ready_at=next_ready_at, now=self._now, has_more=has_more)


_log = logging.getLogger("holdfast.store")


# Runs that cannot be decoded: a claim blocks them, and the worker gets the others


def leased_runs(found: Sequence[ClaimedRun]) -> tuple[list[LeasedRun], list[OddRun]]:
    """Decode the runs that an engine has leased. Return those that can be read, and the others."""
    read: list[LeasedRun] = []
    odd: list[OddRun] = []
    for id, head, history, inbox in found:
        try:
            entries, arrivals = leased_of(history.fields), arrivals_of(inbox)
            lease = Lease(run=run_of(head.fields), entries=entries, arrivals=arrivals)
            read.append(LeasedRun(lease, waits_of(head.fields.get(names.WAITS)), head.version, history.version))
        except FAILURES as error:
            odd.append(OddRun(id, "run", reason_of(error)))
    return read, odd


async def block(driver: Driver, odd: OddRun) -> None:
    """Block a run that no worker can read. What can be read of it stays."""
    key = names.head(odd.run_id)
    loaded = await driver.load([AllFields(key)])
    (head,) = cast("list[Partition]", loaded.answers)
    if not head.fields:
        return
    run, why = marked_run(odd.run_id, head.fields)
    error = ErrorRecord(type=Unreadable.__name__, message=why or str(odd))
    _log.warning("run %s cannot be read and is blocked: %s", run.id, error.message)
    blocked = replace(
        run,
        state=RunState.BLOCKED,
        token=run.token + 1,
        worker=None,
        claim_id=None,
        ready_at=None,
        error=error,
        updated_at=loaded.now,
    )
    fields = fields_of(blocked)
    fields.pop(names.PAYLOAD)
    removes, adds = entry_changes(run, blocked)
    fact = AuditFact(run_id=run.id, event="blocked", at=loaded.now, data={"error": str(error)[:500]})
    part = Part(
        checks={key: head.version},
        puts={key: fields},
        drops={key: [names.READY]},
        removes=removes,
        adds=adds,
        appends={names.audit(run.id): [fact_line(fact)]},
    )
    await driver.commit([part])
