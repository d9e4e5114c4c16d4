"""Claims and starts: how runs come to be, and to those who work on them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import psycopg
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Claimed, ClaimRequest, Created, CreatedRun, LeaseRequest
from holdfast.core.clock import Micros
from holdfast.core.hint import News
from holdfast.core.model import Intent, Lease
from holdfast.stores.memory import starts as model
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.postgres.deciding import TAKEN, TRANSACTION, Bounds, decided
from holdfast.stores.postgres.talks import Talk
from holdfast.stores.postgres.wishes import Wishes
from holdfast.stores.postgres.working import WorkingSet

encode = msgspec.json.encode


class _Claimed(msgspec.Struct):
    now: Micros
    next_ready_at: Micros | None
    has_requests: bool
    leases: tuple[Lease, ...]


class _Time(msgspec.Struct):
    now: Micros


_decode_claimed = msgspec.json.Decoder(_Claimed).decode
_decode_time = msgspec.json.Decoder(_Time).decode


def claim(calls: Calls, request: ClaimRequest, at: Micros | None) -> Talk[tuple[Claimed, bool]]:
    """Lease the first due runs of the given types; and whether producers in SQL have left requests."""
    found = _decode_claimed((yield calls.claim, _arguments(request, at)))
    return Claimed(leases=found.leases, next_ready_at=found.next_ready_at, now=found.now), found.has_requests


def _arguments(request: ClaimRequest, at: Micros | None) -> tuple[object, ...]:
    return (
        request.id,
        request.worker,
        encode(request.types).decode(),
        request.limit,
        request.lease,
        request.python,
        request.may_suspect,
        request.is_repeat,
        at,
    )


def create(
    calls: Calls, intents: Sequence[Intent], lease: LeaseRequest | None, at: Micros | None, bounds: Bounds | None = None
) -> Talk[tuple[Created, News]]:
    """Make runs, in one trip if none of them is known yet; within `bounds` if a transaction is open."""
    is_plain = intents and not any(intent.is_parked for intent in intents)
    if is_plain:
        first = _create_new(calls, intents, lease, at)
        try:
            return (yield from (first if bounds is None else bounds.around(first)))
        except psycopg.DatabaseError as error:
            if error.sqlstate != TAKEN:
                raise
    wishes = Wishes()
    wishes.intents(intents)

    def operation(working: WorkingSet, now: Micros) -> Created:
        return model.create(working, intents, lease, now)

    return (yield from decided(calls, wishes, operation, at, bounds or TRANSACTION))


def create_again(
    calls: Calls, intents: Sequence[Intent], lease: LeaseRequest | None, at: Micros | None
) -> Talk[tuple[Created, News]]:
    """Make runs that a lost attempt may have made already. What it leased is still its creator's, who must know."""
    created, news = yield from create(calls, intents, lease, at)
    if lease is None or all(run.created for run in created.runs):
        return created, news
    types = tuple({intent.type for intent in intents})
    # It asks for nothing but what was leased before.
    request = ClaimRequest(
        id=lease.claim_id,
        worker=lease.worker,
        types=types,
        limit=0,
        lease=lease.lease,
        python=lease.python,
        is_repeat=True,
    )
    won = _decode_claimed((yield calls.claim, _arguments(request, at))).leases
    leases = {one.run.id: one for one in won}
    runs = [
        run if (won_before := leases.get(run.run_id)) is None else replace(run, created=True, lease=won_before)
        for run in created.runs
    ]
    return replace(created, runs=tuple(runs)), news


def _create_new(
    calls: Calls, intents: Sequence[Intent], lease: LeaseRequest | None, at: Micros | None
) -> Talk[tuple[Created, News]]:
    text = yield calls.create, (encode(intents).decode(), encode(lease).decode() if lease else None, at)
    return _made(intents, lease, _decode_time(text).now)


def _made(intents: Sequence[Intent], lease: LeaseRequest | None, now: Micros) -> tuple[Created, News]:
    """The runs as the server has made them: all of them are new."""
    news = News()
    made: list[CreatedRun] = []
    for intent in intents:
        run = rules.new_run(intent, now)
        if lease is None or run.ready_at is None or run.ready_at > now:
            news.ready.add(run.type)
            made.append(CreatedRun(run_id=run.id, created=True))
        else:
            made.append(CreatedRun(run_id=run.id, created=True, lease=Lease(run=rules.claimed(run, lease, now))))
    return Created(runs=tuple(made), now=now), news
