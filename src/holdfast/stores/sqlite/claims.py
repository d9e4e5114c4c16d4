"""Claims: find the candidates for a claim, at a cost that grows only with ready runs.

`operations/leases.py` chooses among the candidates. Runs without a lease are in the index `run_queue`, in lanes: one
lane per type, priority and rank. A claim seeks from lane to lane and reads each lane from its head. Expired leases come
from the index `run_held`. No statement walks over suspended runs. An offered type without runs costs no statement: the
claim seeks alternately in the sorted list of offered types and in the index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import apsw

from holdfast.core import rules
from holdfast.core.checkpoint import Claimed, ClaimRequest
from holdfast.core.claim_order import BEGUN, NEW
from holdfast.core.clock import SECOND, Micros
from holdfast.core.limits import PARKED_AT_ONCE
from holdfast.core.model import Backlog, Run
from holdfast.stores.operations import leases
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.liveness import PROBE_SECONDS, WorkerLocks
from holdfast.stores.sqlite.rows import Row
from holdfast.stores.sqlite.transaction import Transaction

NEXT_TYPE = """
    select type, priority, rank, ready_at, id
    from run indexed by run_queue
    where type >= ?
      and worker is null
      and ready_at is not null
    order by type, priority, rank, ready_at, id
    limit 1
"""

# Two statements, because SQLite would walk the whole lane for a row comparison of (priority, rank).
NEXT_RANK = """
    select priority, rank, ready_at, id
    from run indexed by run_queue
    where type = ?
      and priority = ?
      and rank > ?
      and worker is null
      and ready_at is not null
    order by rank, ready_at, id
    limit 1
"""

NEXT_PRIORITY = """
    select priority, rank, ready_at, id
    from run indexed by run_queue
    where type = ?
      and priority > ?
      and worker is null
      and ready_at is not null
    order by priority, rank, ready_at, id
    limit 1
"""

LANE_HEAD = """
    select ready_at
    from run indexed by run_queue
    where type = ?
      and priority = ?
      and rank = ?
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
      and run.rank = ?
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
    select type, priority, ready_at, id
    from run indexed by run_held
    where worker = ?
      and ready_at <= ?
"""

NEXT_EXPIRIES = """
    select type, ready_at
    from run indexed by run_held
    where worker = ?
      and ready_at > ?
    order by ready_at
"""

WON_BEFORE = f"""
    select {rows.WHOLE_RUN}
    from run indexed by run_held
    join intent on intent.run_id = run.id
    where run.worker = ?
      and run.claim_id = ?
      and run.ready_at is not null
    order by run.rowid
"""

RELEASE_DEAD = """
    update run indexed by run_held
    set ready_at = ?1
    where worker = ?2
      and ready_at > ?1
    returning type
"""

REGISTERED = "select id from worker"  # full scan: there are few workers

_PROBE: Micros = round(PROBE_SECONDS * SECOND)
_LEASES_READ = 16
"""Maximum number of leases per worker that a claim reads to find the next expiry of an offered type.

After that many it reports the expiry of another type. Waking too early costs one claim. Reading all leases would make
every claim as expensive as the number of held runs.
"""


class _Expired(NamedTuple):
    """A held run whose lease has expired."""

    priority: int
    ready_at: Micros
    id: str
    holder: str


class _Lane:
    """The runs of one type, priority and rank without a lease, by ready time and id."""

    __slots__ = ("first_id", "priority", "rank", "ready_at", "runs", "type")

    def __init__(self, type: str, priority: int, rank: int, ready_at: Micros, first_id: str) -> None:
        self.type = type
        self.priority = priority
        self.rank = rank
        self.ready_at = ready_at
        self.first_id = first_id
        self.runs: Generator[Run, None, None] | None = None
        """The due runs, or None until the lane is first read."""

    def read(self, transaction: Transaction, now: Micros) -> Generator[Run, None, None]:
        """Return the due runs, as a generator that reads rows on demand."""
        if self.runs is None:
            self.runs = self._read(transaction, now)
        return self.runs

    def read_ahead(self, transaction: Transaction, request: ClaimRequest, now: Micros) -> None:
        """Read as many runs as a claim can need. Suspects do not count, because the claim may skip them."""
        count = request.limit + PARKED_AT_ONCE
        found: list[Run] = []
        for run in self._read(transaction, now):
            found.append(run)
            count -= not rules.is_suspect(run)
            if not count:
                break
        self.runs = (run for run in found)

    def _read(self, transaction: Transaction, now: Micros) -> Generator[Run, None, None]:
        with closing(transaction.connection.execute(DUE_IN_LANE, (self.type, self.priority, self.rank, now))) as found:
            for row in found:
                yield rows.whole_run_of(row)

    def next_ready_at(self, transaction: Transaction) -> Micros | None:
        """Return the ready time of the first run that is still in the lane."""
        if self.runs is None:
            return self.ready_at
        found = transaction.one(LANE_HEAD, self.type, self.priority, self.rank)
        return None if found is None else found[0]


def claim(transaction: Transaction, locks: WorkerLocks, request: ClaimRequest) -> Claimed:
    """Lease the first due runs of the given types. A repeated claim returns the runs that it got the first time."""
    now = transaction.now()
    transaction.flush()
    if request.is_repeat and (won := _won_before(transaction, request)):
        leased = tuple(leases.lease_of(transaction, run) for run in won)
        return Claimed(leases=leased, next_ready_at=now, now=now)
    ruled = transaction.types.ruled()
    types = sorted({type for type in request.types if type not in ruled or ruled[type].is_enabled})
    holding = list(holders(transaction.connection))
    for dead in locks.find_dead(lambda: {*holding, *(worker_id for (worker_id,) in transaction.all(REGISTERED))}):
        _free_runs_of(transaction, locks, dead, now)
    lanes = _lanes(transaction, types)
    expired = _expired(transaction, holding, types, now)
    limited = [lane for lane in lanes if lane.type in ruled]
    for lane in limited:  # read ahead, because parking and releasing runs changes the lane while it is read
        lane.read_ahead(transaction, request, now)
    chosen, has_more = _chosen(transaction, _queue(transaction, lanes, expired, now), request, now)
    for lane in lanes:
        if lane.runs is not None:
            lane.runs.close()
    leased = tuple(leases.lease(transaction, run, request, now) for run in chosen)
    transaction.flush()
    if limited:
        lanes = _lanes(transaction, types)
    heads = [lane.next_ready_at(transaction) for lane in lanes]
    won_ids = {run.id for run in chosen}
    heads += [one.ready_at for one in expired if one.holder != request.worker and one.id not in won_ids]
    heads += _expiries(transaction, locks, types, [holder for holder in holding if holder != request.worker], now)
    next_ready_at = min((head for head in heads if head is not None), default=None)
    return Claimed(leases=leased, next_ready_at=next_ready_at, now=now, has_more=has_more)


# Candidates


def _won_before(transaction: Transaction, request: ClaimRequest) -> list[Run]:
    won = map(rows.whole_run_of, transaction.all(WON_BEFORE, request.worker, request.id))
    return [run for run in won if run.type in request.types]


def _lanes(transaction: Transaction, types: Sequence[str]) -> list[_Lane]:
    """Return the non-empty lanes of the given types. The types must be sorted."""
    lanes: list[_Lane] = []
    place = 0
    while place < len(types) and (found := transaction.one(NEXT_TYPE, types[place])) is not None:
        type = found[0]
        place = bisect_left(types, type, place)
        if place == len(types) or types[place] != type:
            continue
        place += 1
        lane: Row | None = found[1:]
        while lane is not None:
            priority, rank, ready_at, run_id = lane
            lanes.append(_Lane(type, priority, rank, ready_at, run_id))
            lane = next_lane(transaction.connection, type, priority, rank)
    return lanes


def next_lane(connection: apsw.Connection, type: str, priority: int, rank: int) -> Row | None:
    """The lane of a type that comes after one: priority, rank, and when its first run becomes ready, with its id."""
    found = None if rank == NEW else connection.execute(NEXT_RANK, (type, priority, rank)).fetchone()
    return found or connection.execute(NEXT_PRIORITY, (type, priority)).fetchone()


def holders(connection: apsw.Connection) -> Iterator[str]:
    """Yield the ids of the workers that hold runs."""
    holder = ""
    while (found := connection.execute(NEXT_HOLDER, (holder,)).get) is not None:
        holder = found
        yield holder


def _expired(transaction: Transaction, holding: Sequence[str], types: Collection[str], now: Micros) -> list[_Expired]:
    """Return the runs of the given types whose lease has expired."""
    found = [(holder, row) for holder in holding for row in transaction.all(EXPIRED, holder, now)]
    if not found:
        return []
    offered = set(types)
    return [_Expired(row[1], row[2], row[3], holder) for holder, row in found if row[0] in offered]


def _queue(
    transaction: Transaction, lanes: Sequence[_Lane], expired: Sequence[_Expired], now: Micros
) -> Iterator[Mapping[int, Iterator[Run]]]:
    """Yield the claimable runs, one mapping of rank to runs per priority. Rows are read on demand."""
    due: dict[int, dict[int, list[_Lane]]] = {}
    for lane in lanes:
        if lane.ready_at <= now:
            due.setdefault(lane.priority, {}).setdefault(lane.rank, []).append(lane)
    for lost in expired:
        due.setdefault(lost.priority, {}).setdefault(BEGUN, [])
    for priority in sorted(due):
        lost_here = [lost for lost in expired if lost.priority == priority]
        yield {
            rank: _merged(transaction, of_rank, lost_here if rank == BEGUN else [], now)
            for rank, of_rank in due[priority].items()
        }


def _merged(transaction: Transaction, lanes: Sequence[_Lane], lost: Sequence[_Expired], now: Micros) -> Iterator[Run]:
    """Merge some lanes and the expired runs by ready time and id. A lane is opened only when its head is next."""
    if len(lanes) == 1 and not lost:
        for run in lanes[0].read(transaction, now):
            yield transaction.runs.complete(run)
        return
    heads = [(lane.ready_at, lane.first_id, place) for place, lane in enumerate(lanes)]
    heads += [(one.ready_at, one.id, -1) for one in lost]
    heapify(heads)
    ahead: dict[int, Run] = {}
    while heads:
        _, run_id, place = heappop(heads)
        if place < 0:
            whole = transaction.runs.whole(run_id)
            assert whole is not None
            yield whole
            continue
        runs = lanes[place].read(transaction, now)
        due = ahead.pop(place, None) or next(runs, None)
        if due is None:
            continue
        yield transaction.runs.complete(due)
        if (following := next(runs, None)) is not None:
            ahead[place] = following
            heappush(heads, (following.ready_at or 0, following.id, place))


def _chosen(
    transaction: Transaction, queue: leases.Queue, request: ClaimRequest, now: Micros
) -> tuple[list[Run], bool]:
    """Return the runs that the worker gets, and True if there is more to claim. Skips limits if no type has any."""
    if not transaction.types.ruled():
        return leases.choose(queue, request, lambda run: run)
    return leases.choose_within_limits(transaction, queue, request, now)


# Next wake-up


def _expiries(
    transaction: Transaction, locks: WorkerLocks, types: Sequence[str], holding: Sequence[str], now: Micros
) -> list[Micros]:
    """Return when the leases of other workers expire, and when to check again if workers of other processes live."""
    expiries: list[Micros] = []
    for holder in holding:
        with closing(transaction.connection.execute(NEXT_EXPIRIES, (holder, now))) as found:
            for count, (type, ready_at) in enumerate(found, 1):
                if types[bisect_left(types, type) : bisect_right(types, type)] or count == _LEASES_READ:
                    expiries.append(ready_at)
                    if locks.is_elsewhere(holder):
                        expiries.append(now + _PROBE)
                    break
    return expiries


def _free_runs_of(transaction: Transaction, locks: WorkerLocks, worker_id: str, now: Micros) -> None:
    """Expire the leases of a dead worker now. Its id stays on the runs, so that the next claim counts a crash."""
    transaction.news.ready.update(type for (type,) in transaction.all(RELEASE_DEAD, now, worker_id))
    transaction.workers.remove(worker_id)
    transaction.runs.forget_all()
    transaction.after_commit.append(lambda: locks.remove(worker_id))


# Backlogs: claimable and held runs are counted as a claim reads the queue, from the head of each lane

_DUE_IN_LANE = """
    select count(*), min(ready_at)
    from run indexed by run_queue
    where type = ?
      and priority = ?
      and rank = ?
      and worker is null
      and ready_at <= ?
"""

_EXPIRED_OF = """
    select type, count(*), min(ready_at)
    from run indexed by run_held
    where worker = ?
      and ready_at <= ?
    group by type
"""

_HELD = "select count(*) from run indexed by run_held where worker = ?"


def backlog(connection: apsw.Connection, now: Micros) -> list[Backlog]:
    """Count the runs that a worker can claim now, by type: ready runs and runs with an expired lease."""
    found: dict[str, Backlog] = {}
    for type, count, since in (*_ready(connection, now), *_expired_leases(connection, now)):
        known = found.get(type, Backlog(type=type, count=0, since=since))
        found[type] = Backlog(type=type, count=known.count + count, since=min(known.since, since))
    return sorted(found.values(), key=lambda one: one.type)


def held(connection: apsw.Connection) -> dict[str, int]:
    """Count the runs that each worker holds."""
    return {holder: connection.execute(_HELD, (holder,)).get for holder in holders(connection)}


def _ready(connection: apsw.Connection, now: Micros) -> Iterator[tuple[str, int, Micros]]:
    type = ""
    while (first := connection.execute(NEXT_TYPE, (type,)).fetchone()) is not None:
        type, *lane = first
        while lane is not None:
            priority, rank, _, _ = lane
            count, since = connection.execute(_DUE_IN_LANE, (type, priority, rank, now)).get
            if count:
                yield type, count, since
            lane = next_lane(connection, type, priority, rank)
        type += "\0"  # the smallest string greater than this type


def _expired_leases(connection: apsw.Connection, now: Micros) -> Iterator[tuple[str, int, Micros]]:
    for holder in holders(connection):
        yield from connection.execute(_EXPIRED_OF, (holder, now))
