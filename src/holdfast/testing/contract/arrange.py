"""Builders that bring a run into the state that a test needs. Ids are the same in every test run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from holdfast.core.checkpoint import (
    Block,
    Checkpoint,
    Claimed,
    ClaimRequest,
    Finish,
    Hold,
    LeaseRequest,
    Next,
    Suspend,
    Verdict,
    Verdicts,
)
from holdfast.core.claim_order import Shares
from holdfast.core.clock import SECOND, Micros
from holdfast.core.entries import record_of
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import (
    Arrival,
    AuditFact,
    Entry,
    EntryKind,
    EntryState,
    Event,
    Holding,
    Intent,
    Lease,
    MessageToRun,
    Run,
    Wait,
    WaitKind,
    WorkerRecord,
    derived_id,
    new_id,
)
from holdfast.core.news import Hint
from holdfast.core.ports import Store, Transfer
from holdfast.core.questions import Details
from holdfast.core.states import RunState
from holdfast.testing.contract.clock import START
from holdfast.testing.patience import guard

LEASE: Micros = 30 * SECOND
TYPE = "contract.flow.v1"
WORKER = "worker-a"
OTHER_WORKER = "worker-b"
PYTHON = "3.11"

HOSTILE = (
    "it's",
    'say "hi"',
    "100%",
    "100_",
    "back\\slash",
    "semi;colon -- drop table run",
    "{curly}",
    "[1]",
    "$.path",
    ":name ?1",
    "a*b",
    "trailing ",
    "Ünïcödé ☃ 🦊",
    "tab\tnew\nline",
)
"""Text that a store must accept and return unchanged."""


def an_id(number: int) -> str:
    """Return the id of the run with this number. Ids sort like their numbers."""
    return derived_id(f"run-{number}", START + number * 1_000)


# Starting. Options are passed to the value that is built, which checks their names.


def an_intent(number: int = 1, **options: Any) -> Intent:
    if "parent_id" in options:
        options = {"parent_location": f"child{number}", **options}
    return Intent(**{"id": an_id(number), "type": TYPE, "payload": "{}", **options})


async def start(store: Store, *intents: Intent) -> None:
    created = await store.create(intents)
    assert [run.created for run in created.runs] == [True] * len(intents)


async def held(store: Store, number: int = 1, *, worker: str = WORKER, **options: Any) -> Lease:
    """Create a run and lease it in the same commit. Return the lease."""
    request = LeaseRequest(worker=worker, claim_id=new_id(), lease=LEASE, python=PYTHON)
    (created,) = (await store.create([an_intent(number, **options)], request)).runs
    assert created.lease is not None
    return created.lease


async def suspended(store: Store, number: int = 1, *waits: Wait, **options: Any) -> Lease:
    """Create a run and suspend it on its waits. Return the lease that it had before."""
    lease = await held(store, number, **options)
    verdict = await write(store, checkpoint_for(lease, Suspend(), waits=waits))
    assert not verdict.is_lost
    assert not verdict.is_held
    return lease


async def ended(store: Store, number: int = 1, state: RunState = RunState.SUCCEEDED, **options: Any) -> Lease:
    """Create a run that ends by its own code. Return the lease that it had before."""
    lease = await held(store, number, **options)
    await write(store, checkpoint_for(lease, succeed() if state is RunState.SUCCEEDED else fail()))
    return lease


# Claiming


@asynccontextmanager
async def another(store: Store) -> AsyncIterator[Store]:
    """Open a second store on the same data, as another process would."""
    twin = store.for_another_loop()
    await twin.open()
    try:
        yield twin
    finally:
        await twin.close()


async def claim(
    store: Store,
    *,
    id: str | None = None,
    worker: str = WORKER,
    types: Sequence[str] = (TYPE,),
    limit: int = 10,
    may_suspect: bool = True,
    is_repeat: bool = False,
    python: str = PYTHON,
    shares: Shares | None = None,
) -> Claimed:
    request = ClaimRequest(
        id=id or new_id(),
        worker=worker,
        types=tuple(types),
        limit=limit,
        lease=LEASE,
        python=python,
        may_suspect=may_suspect,
        is_repeat=is_repeat,
        shares=shares or Shares(),
    )
    return await store.claim(request)


async def claim_one(store: Store, *, worker: str = WORKER, type: str = TYPE) -> Lease:
    claimed = await claim(store, worker=worker, types=[type], limit=1)
    assert len(claimed.leases) == 1, "there was nothing to claim"
    return claimed.leases[0]


async def claimed_ids(store: Store, **options: Any) -> list[str]:
    return [lease.run.id for lease in (await claim(store, **options)).leases]


def a_worker(id: str = WORKER) -> WorkerRecord:
    return WorkerRecord(id=id, name=f"{id}-name", host="host", pid=17, types=(TYPE,), concurrency=5)


async def renew(store: Store, *holdings: Holding, worker: str = WORKER, lease: Micros = LEASE) -> Verdicts:
    # `renew` blocks, and a store may need the event loop to answer. So call it in a thread, as the heartbeat does.
    return await asyncio.to_thread(store.renew, a_worker(worker), holdings, lease)


def holding_of(lease: Lease, *, seen: int | None = None) -> Holding:
    return Holding(run_id=lease.run.id, token=lease.run.token, seen=lease.run.arrivals if seen is None else seen)


# Writing


def checkpoint_for(lease: Lease, next: Next | None = None, **parts: Any) -> Checkpoint:
    """Build a checkpoint of the lease holder. By default `seen` is the last arrival number of the lease."""
    run = lease.run
    return Checkpoint(**{"run_id": run.id, "token": run.token, "seen": run.arrivals, "next": next or Hold(), **parts})


async def write(store: Store, checkpoint: Checkpoint) -> Verdict:
    (verdict,) = (await store.checkpoint([checkpoint])).verdicts
    assert verdict.run_id == checkpoint.run_id
    return verdict


def name_of(next: Next) -> str:
    """Return the id of a parametrised test."""
    return type(next).__name__


def succeed(result: str = '"done"') -> Finish:
    return Finish(state=RunState.SUCCEEDED, result=result)


def fail(message: str = "no luck") -> Finish:
    return Finish(state=RunState.FAILED, error=an_error(message))


def block(retry_at: Micros | None = None) -> Block:
    return Block(error=an_error("stuck"), retry_at=retry_at)


def an_error(message: str) -> ErrorRecord:
    return ErrorRecord(type="ValueError", message=message, types=("ValueError", "Exception"))


def a_step(location: str = "charge", position: int = 1, result: str | None = '"paid"', **options: Any) -> Entry:
    return Entry(
        **{
            "location": location,
            "kind": EntryKind.STEP,
            "state": EntryState.DONE,
            "position": position,
            "attempts": 1,
            "result": result,
            "started_at": START,
            "finished_at": START,
            **options,
        }
    )


def a_retry(location: str = "charge", attempts: int = 1) -> Entry:
    return Entry(
        location=location,
        kind=EntryKind.STEP,
        state=EntryState.RETRYING,
        attempts=attempts,
        error=an_error(f"attempt {attempts}"),
        started_at=START,
        retry_at=START + attempts * SECOND,
    )


def a_reception(arrival: Arrival, location: str = "receive", position: int = 1) -> Entry:
    """Build the entry of a message or event that the run received from its inbox."""
    return Entry(
        location=location,
        kind=EntryKind.MESSAGE if arrival.kind is WaitKind.MESSAGE else EntryKind.EVENT,
        state=EntryState.DONE,
        position=position,
        attempts=1,
        result=record_of([arrival]),
        started_at=START,
        finished_at=START,
        ref=arrival.ref,
        since=position - 1,
    )


def a_child(number: int, location: str = "call", position: int = 0, **options: Any) -> Entry:
    """Build the entry of an awaited child: of its end if there is a position, otherwise of its start."""
    return Entry(
        **{
            "location": location,
            "kind": EntryKind.CHILD,
            "state": EntryState.DONE if position else EntryState.STARTED,
            "position": position,
            "attempts": 1,
            "result": '"done"' if position else None,
            "started_at": START,
            "finished_at": START if position else None,
            "ref": an_id(number),
            **options,
        }
    )


# Waits, messages and events


def for_message(*names: str, location: str = "receive", deadline: Micros | None = None) -> Wait:
    return Wait(location=location, kind=WaitKind.MESSAGE, since=START, names=names, deadline=deadline)


def for_event(topic: str, *, after: int = 0, location: str = "event", deadline: Micros | None = None) -> Wait:
    return Wait(location=location, kind=WaitKind.EVENT, since=START, names=(topic,), deadline=deadline, after=after)


def for_child(number: int, *, location: str = "child") -> Wait:
    return Wait(location=location, kind=WaitKind.CHILD, since=START, names=(an_id(number),))


def for_time(deadline: Micros, *, location: str = "sleep") -> Wait:
    return Wait(location=location, kind=WaitKind.TIME, since=START, deadline=deadline)


def a_message(number: int = 1, *, id: str = "m1", name: str = "go", payload: str = "1") -> MessageToRun:
    """Build a message to the run with this number."""
    return MessageToRun(id=id, name=name, payload=payload, run_id=an_id(number))


def an_event(id: str = "e1", *, topic: str = "paid", payload: str = "1") -> Event:
    return Event(id=id, topic=topic, payload=payload)


# Looking


async def the_run(store: Store, number: int = 1) -> Run:
    details = await store.get(an_id(number))
    assert details is not None
    return details.run


async def facts_of(store: Store, number: int = 1) -> list[str]:
    return [fact.event for fact in await store.audit(an_id(number))]


Picture = tuple[Details | None, Sequence[Entry], Sequence[AuditFact]]


async def picture_of(store: Store, *numbers: int) -> list[Picture]:
    """Return everything a store shows of some runs, to compare before and after."""
    ids = [an_id(number) for number in numbers]
    return [
        (await store.get(run_id), tuple(await store.history(run_id)), tuple(await store.audit(run_id)))
        for run_id in ids
    ]


async def holder_of(store: Store, key: str) -> str | None:
    """Return the id of the run that has a key."""
    details = await store.get(key=key)
    return None if details is None else details.run.id


def transfer_of(store: Store) -> Transfer:
    """Return the store's capability to export and import runs."""
    assert store.transfer is not None
    return store.transfer


class HintRecorder:
    """Records hints and waits for the one that a test expects."""

    def __init__(self, store: Store) -> None:
        self._heard: list[Hint] = []
        self._news = asyncio.Event()
        self.stop: Callable[[], None] = store.listen(self._hear)

    def _hear(self, hint: Hint) -> None:
        self._heard.append(hint)
        self._news.set()

    @property
    def heard(self) -> Sequence[Hint]:
        return self._heard

    async def until(self, kind: Literal["ready", "arrived", "ended", "taken", "replied"], name: str) -> None:
        """Return once a hint of this kind has named this run or type. Order and other names do not matter."""
        async with guard(f"a hint names {name} as {kind}"):
            while not any(name in getattr(hint, kind) for hint in self._heard):
                self._news.clear()
                await self._news.wait()
