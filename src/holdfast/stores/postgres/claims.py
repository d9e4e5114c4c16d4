"""Starts, claims and leases: how runs are created, how workers get them, and how they keep them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec
import psycopg
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Claimed, ClaimRequest, Created, CreatedRun, LeaseRequest, Verdicts
from holdfast.core.claim_order import Place, place_of, rank_of
from holdfast.core.clock import SECOND, Micros
from holdfast.core.limits import PARKED_AT_ONCE
from holdfast.core.model import Holding, Intent, Lease, Run, WorkerRecord
from holdfast.core.news import News
from holdfast.stores.operations import starts as model
from holdfast.stores.operations.leases import Queue, choose_within_limits, hold, queue_of
from holdfast.stores.postgres import unreadable
from holdfast.stores.postgres.scripts import Calls, Connection, Script, answer, qualified
from holdfast.stores.postgres.unit_of_work import TAKEN, TRANSACTION, Bounds, decide
from holdfast.stores.postgres.unreadable import members
from holdfast.stores.workspace.decision import Missing
from holdfast.stores.workspace.reads import DueRead, RowRead, TypeRead, for_intents, to_serve
from holdfast.stores.workspace.row_unit import RowUnit

encode = msgspec.json.encode

SUSPECTS = 16
"""Number of suspect runs that a claim of limited types loads. It wins only one, but may have to park others first."""
WAITING = 16
"""Number of runs waiting for a rate that a claim loads in its first round."""


class Found(msgspec.Struct):
    """The server's answer to a claim: leases or, if runs of types with limits are due, the types to examine.

    `has_requests` is True if SQL producers have left requests.
    """

    now: Micros
    has_requests: bool
    next_ready_at: Micros | None = None
    limited: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    rated: tuple[str, ...] = ()
    leases: tuple[Lease, ...] = ()

    @property
    def claimed(self) -> Claimed | None:
        """The answer of the claim, or None if types with limits have to be examined first."""
        if self.limited:
            return None
        return Claimed(leases=self.leases, next_ready_at=self.next_ready_at, now=self.now)


class _Leased(msgspec.Struct):
    next_ready_at: Micros | None
    leases: tuple[Lease, ...]


class _Made(msgspec.Struct):
    now: Micros
    ruled: tuple[str, ...] = ()


_decode_found = msgspec.json.Decoder(Found).decode
_decode_leased = msgspec.json.Decoder(_Leased).decode
_decode_made = msgspec.json.Decoder(_Made).decode


def claim(calls: Calls, request: ClaimRequest, at: Micros | None) -> Script[Found]:
    """Lease the first due runs of the given types, in one round trip if they have no limits."""
    text = yield calls.claim, _arguments(request, at)
    try:
        return _decode_found(text)
    except (msgspec.MsgspecError, RecursionError):
        parts = members(text)
    # One of the runs cannot be decoded. It is blocked, and the worker gets the others.
    leases = []
    for one in unreadable.leases_in(parts["leases"]):
        if isinstance(one, Lease):
            leases.append(one)
        else:
            yield calls.block_unreadable, (one.run_id, request.worker, one.why, at)
    now = int(parts["now"])
    return Found(now=now, has_requests=parts["has_requests"] == "true", next_ready_at=now, leases=tuple(leases))


def claim_again(calls: Calls, request: ClaimRequest, at: Micros | None) -> Script[Claimed]:
    """Repeat a claim of limited types whose lost first attempt may have won leases."""
    found = yield from claim(calls, request, at)
    return found.claimed or (yield from claim_limited(calls, request, found, at))


def claim_limited(
    calls: Calls, request: ClaimRequest, found: Found, at: Micros | None, bounds: Bounds = TRANSACTION
) -> Script[Claimed]:
    """Lease due runs by the shared operations, which know the limits. Runs that cannot be decoded are blocked."""
    while True:
        try:
            return (yield from _claim_limited(calls, request, found, at, bounds))
        except unreadable.UnreadableRun as odd:
            if (yield calls.block_unreadable, (odd.run_id, None, odd.why, at)) != "true":
                raise


def _claim_limited(
    calls: Calls, request: ClaimRequest, found: Found, at: Micros | None, bounds: Bounds
) -> Script[Claimed]:
    suspects = SUSPECTS if request.may_suspect else 0
    limited, more = (
        DueRead(found.limited, count, suspects) for count in (request.limit, request.limit + PARKED_AT_ONCE)
    )
    types = found.limited + found.others
    reads: list[RowRead] = [*map(TypeRead, types), limited, DueRead(found.others, request.limit, suspects)]
    for type in found.rated:
        reads += to_serve(type, WAITING)

    def operation(unit: RowUnit, now: Micros) -> Claimed:
        known = [rule for rule in map(unit.types.get, types) if rule is not None]
        enabled = {*types} - {rule.name for rule in known if not rule.is_enabled}
        runs = [record.run for record in unit.rows.records.values()]
        due = [run for run in runs if run.type in enabled and rules.is_due(run, now)]
        queue = queue_of(due) if more in unit.rows.reads else _queue_in_sight(due, limited, more)
        chosen, has_more = choose_within_limits(unit, queue, request, now)
        leases = tuple(Lease(run=hold(unit, run, request, now)) for run in chosen)
        return Claimed(leases=leases, next_ready_at=None, now=now, has_more=has_more)

    def read(claimed: Claimed) -> Script[Claimed]:
        ids = [lease.run.id for lease in claimed.leases]
        text = yield calls.leased, (encode(ids).decode(), _array(request.types), request.worker)
        try:
            leased = _decode_leased(text)
        except unreadable.FAILURES:
            for one in unreadable.leases_in(members(text)["leases"]):
                if not isinstance(one, Lease):
                    raise one from None
            raise
        return replace(claimed, leases=leased.leases, next_ready_at=leased.next_ready_at)

    # The news is dropped: a run that got no slot waits, and the operation that frees a slot makes it ready.
    claimed, _ = yield from decide(calls, reads, operation, at, bounds, then=read)
    return claimed


def _queue_in_sight(due: Sequence[Run], wanted: DueRead, more: DueRead) -> Queue:
    """Return the due runs as a queue. A claim that gets past the loaded runs of a rank has to load `more`."""
    places: dict[int, list[Place]] = {}
    for run in due:
        if run.type in wanted.types and not rules.is_suspect(run):
            places.setdefault(rank_of(run), []).append(place_of(run))
    count = max(1, wanted.count)
    ends = {rank: sorted(known)[count - 1] for rank, known in places.items() if len(known) >= count}
    return [
        {rank: _until(ends[rank], runs, more) if rank in ends else runs for rank, runs in ranks.items()}
        for ranks in queue_of(due)
    ]


def _until(end: Place, runs: Iterator[Run], more: DueRead) -> Iterator[Run]:
    """Yield the runs of a lane up to a place. Behind it there may be runs that were not loaded."""
    priority = None
    for run in runs:
        if place_of(run) > end:
            raise Missing([more])
        yield run
        priority = run.priority
    if priority == end[0]:
        raise Missing([more])


@lru_cache(maxsize=16)
def _array(types: tuple[str, ...]) -> str:
    """Return types, by code point, as a Postgres array. The server parses a thousand twice as fast as from JSON."""
    names = sorted(types)
    together = "".join(names)
    if "\\" in together or '"' in together:
        names = [name.replace("\\", "\\\\").replace('"', '\\"') for name in names]
    return '{"' + '","'.join(names) + '"}' if names else "{}"


def _arguments(request: ClaimRequest, at: Micros | None) -> tuple[object, ...]:
    return (
        request.id,
        request.worker,
        _array(request.types),
        request.limit,
        request.lease,
        request.python,
        request.may_suspect,
        request.is_repeat,
        request.shares.since_new,
        request.shares.since_child,
        at,
    )


def create(
    calls: Calls, intents: Sequence[Intent], lease: LeaseRequest | None, at: Micros | None, bounds: Bounds | None = None
) -> Script[tuple[Created, News]]:
    """Create runs, in one round trip if none of them exists yet. `bounds` is set if a transaction is already open."""
    is_plain = intents and not any(intent.is_parked for intent in intents)
    if is_plain:
        first = _create_new(calls, intents, lease, at)
        try:
            return (yield from (first if bounds is None else bounds.around(first)))
        except psycopg.DatabaseError as error:
            if error.sqlstate != TAKEN:
                raise
    reads: list[RowRead] = [*for_intents(intents)]
    if lease is not None:
        reads += (TypeRead(intent.type) for intent in intents)
    return (
        yield from decide(
            calls, reads, lambda unit, now: model.create(unit, intents, lease, now), at, bounds or TRANSACTION
        )
    )


def create_again(
    calls: Calls, intents: Sequence[Intent], lease: LeaseRequest | None, at: Micros | None
) -> Script[tuple[Created, News]]:
    """Create runs that a lost attempt may have created. Leases of that attempt are returned: the caller holds them."""
    created, news = yield from create(calls, intents, lease, at)
    if lease is None or all(run.created for run in created.runs):
        return created, news
    types = tuple({intent.type for intent in intents})
    # With the limit 0 it returns only leases that the lost attempt won.
    request = ClaimRequest(
        id=lease.claim_id,
        worker=lease.worker,
        types=types,
        limit=0,
        lease=lease.lease,
        python=lease.python,
        is_repeat=True,
    )
    won = (yield from claim(calls, request, at)).leases
    leases = {one.run.id: one for one in won}
    runs = [
        run if (won_before := leases.get(run.run_id)) is None else replace(run, created=True, lease=won_before)
        for run in created.runs
    ]
    return replace(created, runs=tuple(runs)), news


def _create_new(
    calls: Calls, intents: Sequence[Intent], lease: LeaseRequest | None, at: Micros | None
) -> Script[tuple[Created, News]]:
    text = yield calls.create, (encode(intents).decode(), encode(lease).decode() if lease else None, at)
    return _made(intents, lease, _decode_made(text))


def _made(intents: Sequence[Intent], lease: LeaseRequest | None, answer: _Made) -> tuple[Created, News]:
    """Return the created runs. All of them are new, so `rules` compute them and the server need not return them."""
    news, now = News(), answer.now
    made: list[CreatedRun] = []
    for intent in intents:
        run = rules.new_run(intent, now)
        if lease is None or run.ready_at is None or run.ready_at > now or run.type in answer.ruled:
            news.ready.add(run.type)
            made.append(CreatedRun(run_id=run.id, created=True))
        else:
            made.append(CreatedRun(run_id=run.id, created=True, lease=Lease(run=rules.claimed(run, lease, now))))
    return Created(runs=tuple(made), now=now), news


# Leases

PATIENCE = 8
"""A renewal retries locked runs for this fraction of a lease (1/8).

A transaction that locks a run for longer also keeps other workers from claiming it. For all other runs the next beat
comes in time.
"""

_CHECK = "select {schema}.look_v1(%s, %s)"

_FIRST_PAUSE_SECONDS = 0.01
_LAST_PAUSE_SECONDS = 0.5


class _Renewed(msgspec.Struct):
    verdicts: Verdicts = msgspec.field(name="told")
    skipped: frozenset[str]


_decode_renewed = msgspec.json.Decoder(_Renewed).decode
_decode_skipped = msgspec.json.Decoder(frozenset[str]).decode
_decode_verdicts = msgspec.json.Decoder(Verdicts).decode


def renew(
    connection: Connection,
    calls: Calls,
    worker: WorkerRecord,
    holdings: Sequence[Holding],
    *,
    lease: Micros,
    at: Micros | None,
) -> Verdicts:
    """Record a worker's heartbeat, and renew the leases that it still holds."""

    def prolong(some: Sequence[Holding]) -> _Renewed:
        text = answer(connection, calls.renew, _json(worker), _json(some), lease, at)
        try:
            return _decode_renewed(text)
        except unreadable.FAILURES:
            parts = members(text)
            return _Renewed(unreadable.verdicts(parts["told"]), _decode_skipped(parts["skipped"]))

    renewed = prolong(holdings)
    verdicts = renewed.verdicts
    until = time.monotonic() + lease / SECOND / PATIENCE
    pause = _FIRST_PAUSE_SECONDS
    while (locked := _still_held(renewed)) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(_LAST_PAUSE_SECONDS, pause * 2)
        renewed = prolong([holding for holding in holdings if holding.run_id in locked])
    return verdicts


def _still_held(renewed: _Renewed) -> frozenset[str]:
    """Return the runs that were skipped because they are locked. A run that does not exist is skipped, too."""
    if not renewed.skipped:
        return renewed.skipped
    return renewed.skipped - {verdict.run_id for verdict in renewed.verdicts.verdicts if verdict.is_lost}


def check(connection: Connection, schema: str, holdings: Sequence[Holding], at: Micros | None) -> Verdicts:
    """Return the verdict on each lease, as a renewal would give it."""
    text = answer(connection, qualified(_CHECK, schema), _json(holdings), at)
    try:
        return _decode_verdicts(text)
    except unreadable.FAILURES:
        return unreadable.verdicts(text)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
