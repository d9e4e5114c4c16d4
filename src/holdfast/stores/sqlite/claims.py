"""Claims: which runs a worker gets, by priority, ready time and id, at a cost that only ready runs raise.

Runs nobody holds stand in the index `run_queue` in lanes, one per type and priority. A claim hops from lane
to lane and reads each from its head; expired leases come from `run_held`. Nothing here walks what sleeps.
"""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Claimed, ClaimRequest
from holdfast.core.clock import SECOND, Micros
from holdfast.core.limits import PARKED_AT_ONCE
from holdfast.core.model import Lease, Run
from holdfast.stores.limits import admit
from holdfast.stores.sqlite import limits, rows
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.histories import history
from holdfast.stores.sqlite.liveness import PROBE_SECONDS, WorkerLocks

# A comparison of (type, priority) as one pair would walk the whole lane, so types are hopped by the caller.
NEXT_LANE = """
    select priority, ready_at
    from run indexed by run_queue
    where type = ?
      and priority > ?
      and worker is null
      and ready_at is not null
    order by priority, ready_at
    limit 1
"""

LANE_HEAD = """
    select ready_at
    from run indexed by run_queue
    where type = ?
      and priority = ?
      and worker is null
      and ready_at is not null
    order by ready_at
    limit 1
"""

DUE_IN_LANE = f"""
    select {rows.WHOLE_RUN}
    from run indexed by run_queue
    join intent on intent.run_id = run.id
    where run.type = ?
      and run.priority = ?
      and run.worker is null
      and run.ready_at <= ?
    order by run.ready_at, run.id
"""

NEXT_HOLDER = """
    select worker
    from run indexed by run_held
    where worker > ?
    order by worker
    limit 1
"""

EXPIRED = """
    select priority, ready_at, id
    from run indexed by run_held
    where worker = ?
      and type = ?
      and ready_at <= ?
"""

NEXT_EXPIRY = """
    select ready_at
    from run indexed by run_held
    where worker = ?
      and type = ?
    order by ready_at
    limit 1
"""

BY_ID = f"""
    select {rows.WHOLE_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.id = ?
"""  # by the primary keys

WON_BEFORE = f"""
    select {rows.WHOLE_RUN}
    from run indexed by run_held
    join intent on intent.run_id = run.id
    where run.worker = ?
      and run.claim_id = ?
      and run.ready_at is not null
    order by run.rowid
"""

BEFORE_ALL_PRIORITIES = -(1 << 62)
_PROBE: Micros = round(PROBE_SECONDS * SECOND)


@dataclass(frozen=True)
class _Lane:
    priority: int
    type: str
    ready_at: Micros


RELEASE_DEAD = """
    update run indexed by run_held
    set ready_at = ?1
    where worker = ?2
      and ready_at > ?1
    returning type
"""

REGISTERED = """
    select id
    from worker
"""  # all of them: they are few

FORGET_WORKER = """
    delete from worker
    where id = ?
"""  # by the primary key


def claim(desk: Desk, locks: WorkerLocks, request: ClaimRequest) -> Claimed:
    """Lease the first due runs of the given types. A repeated claim gets what it got."""
    now = desk.now()
    desk.flush()
    types, ruled = sorted(set(request.types)), desk.ruled_types()
    if request.is_repeat and (won := _won_before(desk, request, types)):
        return Claimed(leases=tuple(_lease_of(desk, run) for run in won), next_ready_at=now, now=now)
    types = [type for type in types if type not in ruled or ruled[type].is_enabled]
    lanes = [lane for type in types for lane in _lanes(desk, type)]
    holders = _holders(desk)
    for dead in locks.find_dead(lambda: {*holders, *(worker_id for (worker_id,) in desk.all(REGISTERED))}):
        _free_runs_of(desk, locks, dead, now)
    limited = {type for type in types if type in ruled}
    # Read before anybody is parked or let go, which changes what is read.
    ahead = {lane: [*_enough(desk, lane, request, now)] for lane in lanes if lane.type in limited}
    due = _due(desk, lanes, ahead, _expired(desk, holders, types, now), now)
    chosen, has_more = _chosen(desk, due, request, limited, now)
    leases = tuple(_lease(desk, run, request, now) for run in chosen)
    desk.flush()
    if limited:
        lanes = [lane for type in types for lane in _lanes(desk, type)]
    others = [holder for holder in holders if holder != request.worker]
    heads = (*_lane_heads(desk, lanes), *_expiries(desk, locks, types, others, now))
    return Claimed(leases=leases, next_ready_at=min(heads, default=None), now=now, has_more=has_more)


# Candidates


def _won_before(desk: Desk, request: ClaimRequest, types: Sequence[str]) -> list[Run]:
    won = map(rows.whole_run_of, desk.all(WON_BEFORE, request.worker, request.id))
    return [run for run in won if run.type in types]


def _lanes(desk: Desk, type: str) -> Iterator[_Lane]:
    """The lanes of a type that hold anything, each with the ready time of its head."""
    priority = BEFORE_ALL_PRIORITIES
    while (found := desk.one(NEXT_LANE, type, priority)) is not None:
        priority, ready_at = found
        yield _Lane(priority, type, ready_at)


def _holders(desk: Desk) -> list[str]:
    """The workers that hold runs."""
    holders: list[str] = []
    while (found := desk.one(NEXT_HOLDER, holders[-1] if holders else "")) is not None:
        holders.append(found[0])
    return holders


def _expired(desk: Desk, holders: Sequence[str], types: Sequence[str], now: Micros) -> list[tuple[int, Micros, str]]:
    """Runs whose lease has run out, in claim order."""
    return sorted(
        (priority, ready_at, run_id)
        for holder in holders
        for type in types
        for priority, ready_at, run_id in desk.all(EXPIRED, holder, type, now)
    )


def _due(
    desk: Desk,
    lanes: Sequence[_Lane],
    ahead: Mapping[_Lane, Sequence[Run]],
    expired: Sequence[tuple[int, Micros, str]],
    now: Micros,
) -> Iterator[Run]:
    """Every run that may be claimed now, in claim order, read only as far as it is asked for; some were read ahead."""
    due = [lane for lane in lanes if lane.ready_at <= now]
    for priority in sorted({lane.priority for lane in due} | {priority for priority, _, _ in expired}):
        heads = [ahead.get(lane) or _read_lane(desk, lane, now) for lane in due if lane.priority == priority]
        lost = (_by_id(desk, run_id) for at, _, run_id in expired if at == priority)
        yield from merge(*heads, lost, key=attrgetter("ready_at", "id"))


def _enough(desk: Desk, lane: _Lane, request: ClaimRequest, now: Micros) -> Iterator[Run]:
    """As many of a lane as a claim may have to look at. Suspects may be passed over, so they do not count."""
    count = request.limit + PARKED_AT_ONCE
    for run in _read_lane(desk, lane, now):
        yield run
        count -= not rules.is_suspect(run)
        if not count:
            break


def _read_lane(desk: Desk, lane: _Lane, now: Micros) -> Iterator[Run]:
    with closing(desk.connection.execute(DUE_IN_LANE, (lane.type, lane.priority, now))) as found:
        for row in found:
            yield rows.whole_run_of(row)


def _by_id(desk: Desk, run_id: str) -> Run:
    row = desk.one(BY_ID, run_id)
    assert row is not None
    return rows.whole_run_of(row)


def _chosen(
    desk: Desk, due: Iterator[Run], request: ClaimRequest, limited: Collection[str], now: Micros
) -> tuple[list[Run], bool]:
    """As many as were asked for, and of the suspects at most one; those beyond a limit are parked.

    And whether there is more: enough were parked for one time, or others were let go who waited for a rate.
    """
    book = limits.DeskBook(desk)
    chosen: list[Run] = []
    parked = 0
    may_suspect = request.may_suspect
    for run in due:
        if len(chosen) == request.limit or parked == PARKED_AT_ONCE:
            break
        is_suspect = rules.is_suspect(run)
        if is_suspect and not may_suspect:
            continue
        whole = desk.completed(run)
        admitted = admit(book, whole, now) if run.type in limited else whole
        if admitted is None:
            parked += 1
            continue
        may_suspect = may_suspect and not is_suspect
        chosen.append(admitted)
    return chosen, parked == PARKED_AT_ONCE or book.has_let_go


# Leases


def _lease(desk: Desk, run: Run, request: ClaimRequest, now: Micros) -> Lease:
    after = rules.claimed(run, request, now)
    desk.put(after)
    desk.note_often(audit.of_claim(run, after, now), after.token)
    if run.token == 0:  # never held, so it has no history
        return Lease(run=after, arrivals=desk.newer(after, 0))
    return _lease_of(desk, after)


def _lease_of(desk: Desk, run: Run) -> Lease:
    return Lease(run=run, entries=history(desk.connection, run.id), arrivals=desk.newer(run, 0))


# What is left


def _lane_heads(desk: Desk, lanes: Sequence[_Lane]) -> list[Micros]:
    """When the next run of each lane becomes ready."""
    heads = [desk.one(LANE_HEAD, lane.type, lane.priority) for lane in lanes]
    return [head[0] for head in heads if head is not None]


def _expiries(
    desk: Desk, locks: WorkerLocks, types: Sequence[str], holders: Sequence[str], now: Micros
) -> list[Micros]:
    """When the leases of others run out, or when to look again whether those of other processes live."""
    expiries: list[Micros] = []
    for holder in holders:
        found = [desk.one(NEXT_EXPIRY, holder, type) for type in types]
        held_until = [expiry[0] for expiry in found if expiry is not None]
        expiries += held_until
        if held_until and locks.is_elsewhere(holder):
            expiries.append(now + _PROBE)
    return expiries


def _free_runs_of(desk: Desk, locks: WorkerLocks, worker_id: str, now: Micros) -> None:
    """Let the leases of a dead worker run out now. It stays on its runs, so that whoever claims them counts a crash."""
    desk.news.ready.update(type for (type,) in desk.all(RELEASE_DEAD, now, worker_id))
    desk.connection.execute(FORGET_WORKER, (worker_id,))
    desk.forget_all()
    desk.after_commit.append(lambda: locks.remove(worker_id))
