"""A machine that does the same to two stores, legal or not, and compares all they answer and all they show.

The memory store is the model. Ids, keys, names and times come from small pools, so that repeats and
collisions are common.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from holdfast.core.checkpoint import (
    Cancel,
    Checkpoint,
    Claimed,
    ClaimRequest,
    Created,
    Hold,
    LeaseRequest,
    Next,
    Release,
    Suspend,
    Verdicts,
)
from holdfast.core.clock import DAY, SECOND, Micros
from holdfast.core.errors import KeyConflict, RunNotFound
from holdfast.core.model import Arrival, Entry, Event, Holding, Intent, Lease, Message, Wait, WaitKind
from holdfast.core.ports import Details, Query, Store
from holdfast.core.states import RunState
from holdfast.stores.memory import MemoryStore
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import (
    LEASE,
    PYTHON,
    a_retry,
    a_step,
    a_worker,
    an_id,
    block,
    fail,
    for_child,
    for_event,
    for_message,
    for_time,
    succeed,
)

Plan = dict[str, Any]
"""Drawn values with the fields of what they become, before numbers and offsets are turned into ids and times."""

RUNS = 8
NUMBERS = st.integers(0, RUNS - 1)
TYPES = ("shop", "shop.order", "it's 100%")
KEYS = ("k", "it's %")
NAMES = ("go", "it's %", "stop")
TOPICS = ("paid", "it's_%")
LENGTHS: tuple[Micros, ...] = (1, SECOND, LEASE - 1, LEASE, DAY, 7 * DAY)
WORKERS = ("worker-a", "worker-b", "worker-c")


def often(usual: Any, *rare: Any) -> st.SearchStrategy[Any]:
    """Mostly the first."""
    return st.sampled_from([usual] * (2 * len(rare)) + [*rare])


INTENTS = st.fixed_dictionaries(
    {
        "number": NUMBERS,
        "type": often(*TYPES),
        "payload": often("{}", '{"a":1}', '{ "a": 1 }'),
        "key": often(None, *KEYS),
        "reuse": st.sampled_from(["never", "after_failure", "after_end"]),
        "priority": often(100, 0, 255),
        "delay": often(0, 1, SECOND),
        "tags": often({}, {"it's": "%"}),
        "parent": st.none() | NUMBERS,
        "on_close": st.sampled_from(["cancel", "abandon"]),
    }
)
MESSAGES = st.builds(
    lambda number, to, key, name: Message(
        id=f"{number}", name=name, payload=f"{number}", run_id=None if key else an_id(to), key=key
    ),
    st.integers(1, 6),
    NUMBERS,
    often(None, *KEYS),
    st.sampled_from(NAMES),
)
EVENTS = st.builds(
    lambda number, topic: Event(id=f"e{number}", topic=topic, payload=f"{number}"),
    st.integers(0, 9),
    st.sampled_from(TOPICS),
)
WAITS = st.one_of(
    st.builds(lambda names: for_message(*names), st.lists(st.sampled_from(NAMES), max_size=2, unique=True)),
    st.sampled_from(TOPICS).map(for_event),
    st.sampled_from(TOPICS).map(lambda topic: for_event(topic, location="event#2")),
    NUMBERS.map(for_child),
    st.sampled_from(LENGTHS).map(for_time),
    st.sampled_from(LENGTHS).map(lambda length: for_message("go", location="timed", deadline=length)),
)
NEXTS: st.SearchStrategy[Next] = often(
    Hold(), Suspend(), Suspend(), Suspend(), succeed(), fail(), block(), block(SECOND), Release()
)
CHECKPOINTS = st.fixed_dictionaries(
    {
        "lease": st.integers(0, 4),
        "token": often(0, 1, -1),
        "seen": often("known", "lease", "none"),
        "next": NEXTS,
        "entries": st.lists(st.tuples(st.sampled_from(["a", "b/it's#2"]), st.integers(0, 3)), max_size=2),
        "consumed": st.lists(st.integers(0, 3), max_size=2, unique=True),
        "waits": st.none() | st.lists(WAITS, max_size=3, unique_by=lambda wait: wait.location),
        "is_after": st.booleans(),
        "children": st.lists(INTENTS, max_size=1),
        "messages": st.lists(MESSAGES, max_size=1),
        "events": st.lists(EVENTS, max_size=1),
        "cancels": st.lists(NUMBERS, max_size=1),
        "values": often({}, {"done": "1"}, {"it's": '"x"'}),
        "charged": st.booleans(),
    }
)
QUERIES = st.fixed_dictionaries(
    {
        "states": st.frozensets(st.sampled_from(RunState), max_size=3),
        "type": often(None, *TYPES, "shop.*", "s*", "%"),
        "key": often(None, *KEYS),
        "tags": often({}, {"it's": "%"}),
        "parent_id": often(None, an_id(0), an_id(1)),
        "id_prefix": often(None, an_id(0)[:10], an_id(1)),
        "limit": st.integers(1, 4),
    }
)


class StoreMachine(RuleBasedStateMachine):
    """Drives the model and another store side by side."""

    def __init__(self, open_other: Callable[[SettableClock], Store]) -> None:
        super().__init__()
        self.clock = SettableClock()
        self.loop = asyncio.new_event_loop()
        self.model: Store = MemoryStore(clock=self.clock)
        self.other = open_other(self.clock)
        self.claim_ids: list[str] = []
        self.leases: list[Lease] = []
        self.known: dict[str, dict[int, Arrival]] = defaultdict(dict)
        self.had: dict[tuple[str, str], int] = defaultdict(int)
        self.batches: list[list[Checkpoint]] = []
        self.position = 0
        self.loop.run_until_complete(self.model.open())
        self.loop.run_until_complete(self.other.open())

    def teardown(self) -> None:
        self.loop.run_until_complete(self.other.close())
        self.loop.close()

    # Doing

    @rule(plans=st.lists(INTENTS, min_size=1, max_size=3), worker=often(None, *WORKERS))
    def create(self, plans: list[Plan], worker: str | None) -> None:
        intents = [self._intent(plan) for plan in plans]
        lease = None
        if worker is not None:
            lease = LeaseRequest(worker=worker, claim_id=self._new_claim_id(), lease=LEASE, python=PYTHON)
        created = self._both(lambda store: store.create(intents, lease))
        if isinstance(created, Created):
            self._learn([run.lease for run in created.runs if run.lease is not None])

    @rule(
        worker=st.sampled_from(WORKERS),
        types=often(TYPES, TYPES[:1], TYPES[1:], ("shop.",), ()),
        limit=st.integers(1, 4),
        may_suspect=often(True, False),
        repeats=often(None, 0, 1, 2),
    )
    def claim(self, *, worker: str, types: tuple[str, ...], limit: int, may_suspect: bool, repeats: int | None) -> None:
        is_repeat = repeats is not None and len(self.claim_ids) > repeats
        request = ClaimRequest(
            id=self.claim_ids[-1 - (repeats or 0)] if is_repeat else self._new_claim_id(),
            worker=worker,
            types=types,
            limit=limit,
            lease=LEASE,
            python=PYTHON,
            may_suspect=may_suspect,
            is_repeat=is_repeat,
        )
        claimed = self._both(lambda store: store.claim(request), _unordered if is_repeat else None)
        self._learn(claimed.leases)

    @rule(plans=st.lists(CHECKPOINTS, min_size=1, max_size=3))
    def checkpoint(self, plans: list[Plan]) -> None:
        batch = {one.run_id: one for plan in plans if (one := self._checkpoint(plan)) is not None}
        if batch:
            self._write([*batch.values()])

    @rule(index=st.integers(0, 3))
    def repeat_checkpoints(self, index: int) -> None:
        if len(self.batches) > index:
            self._write(self.batches[-1 - index])

    def _write(self, batch: list[Checkpoint]) -> None:
        self.batches.append(batch)
        self._hear(self._both(lambda store: store.checkpoint(batch)))
        for checkpoint in batch:
            for number in checkpoint.consumed:
                arrival = self.known[checkpoint.run_id].get(number)
                if arrival is not None and arrival.kind is WaitKind.EVENT:
                    had = self.had[checkpoint.run_id, arrival.name]
                    self.had[checkpoint.run_id, arrival.name] = max(had, int(arrival.ref or 0))

    @rule(worker=st.sampled_from(WORKERS), plans=st.lists(st.tuples(st.integers(0, 5), often(0, 1, -1)), max_size=3))
    def renew(self, worker: str, plans: list[tuple[int, int]]) -> None:
        holdings = self._holdings(plans)

        async def renewed(store: Store) -> Verdicts:
            return await asyncio.to_thread(store.renew, a_worker(worker), holdings, LEASE)

        self._hear(self._both(renewed))

    @rule(plans=st.lists(st.tuples(st.integers(0, 5), often(0, 1, -1)), max_size=3))
    def look(self, plans: list[tuple[int, int]]) -> None:
        holdings = self._holdings(plans)
        self._hear(self._both(lambda store: store.look(holdings)))

    @rule(worker=st.sampled_from(WORKERS))
    def retire(self, worker: str) -> None:
        self._both(lambda store: store.retire(worker))

    @rule(messages=st.lists(MESSAGES, min_size=1, max_size=3))
    def send(self, messages: list[Message]) -> None:
        self._both(lambda store: store.send(messages), list)

    @rule(events=st.lists(EVENTS, min_size=1, max_size=2))
    def emit(self, events: list[Event]) -> None:
        self._both(lambda store: store.emit(events), list)

    @rule(number=NUMBERS, reason=st.sampled_from(["", "it's %"]))
    def cancel(self, number: int, reason: str) -> None:
        self._both(lambda store: store.control(an_id(number), Cancel(id=f"c{number}", reason=reason)))

    @rule(length=st.sampled_from(LENGTHS))
    def advance(self, length: Micros) -> None:
        self.clock.advance(length)

    @rule(plan=QUERIES, until=often(None, 0, 1))
    def list(self, plan: Plan, until: int | None) -> None:
        now = self.clock.now()
        first = self._both(lambda store: store.list(Query(**plan)), _seen)
        if first:
            last = first[-1].run
            self._both(lambda store: store.list(Query(**plan, before=(last.created_at, last.id))), _seen)
        if until is not None:
            self._both(lambda store: store.list(Query(**plan, created_until=now + until)), _seen)
            self._both(lambda store: store.list(Query(**plan, created_from=now + until)), _seen)

    # Looking

    @invariant()
    def both_show_the_same(self) -> None:
        model, other = self.loop.run_until_complete(self._pictures())
        for name in model:
            assert other[name] == model[name], name

    async def _pictures(self) -> tuple[Plan, Plan]:
        return await _picture(self.model), await _picture(self.other)

    def _both(self, operation: Callable[[Store], Awaitable[Any]], normal: Callable[[Any], Any] | None = None) -> Any:
        """Ask both; the answers must be equal. Returns the model's."""

        async def ask() -> tuple[Any, Any]:
            return await _outcome(operation, self.model), await _outcome(operation, self.other)

        answers = self.loop.run_until_complete(ask())
        model, other = [normal(answer) if normal else answer for answer in answers]
        assert other == model
        return model

    # Remembering

    def _new_claim_id(self) -> str:
        self.claim_ids.append(f"claim-{len(self.claim_ids)}")
        return self.claim_ids[-1]

    def _learn(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self.leases.append(lease)
            self.known[lease.run.id] |= {arrival.number: arrival for arrival in lease.arrivals}

    def _hear(self, answer: Verdicts) -> None:
        for verdict in answer.verdicts:
            self.known[verdict.run_id] |= {arrival.number: arrival for arrival in verdict.arrivals}

    # Making values of plans

    def _intent(self, plan: Plan) -> Intent:
        fields = dict(plan)
        number, parent = fields.pop("number"), fields.pop("parent")
        # Parents are older than their children, as in life, so that nobody is their own ancestor.
        is_child = parent is not None and parent < number
        lineage = {"parent_id": an_id(parent), "parent_location": "call"} if is_child else {}
        return Intent(id=an_id(number), **fields, **lineage)

    def _holdings(self, plans: Sequence[tuple[int, int]]) -> Sequence[Holding]:
        leases = [(self.leases[-1 - index], offset) for index, offset in plans if len(self.leases) > index]
        return [
            Holding(run_id=lease.run.id, token=lease.run.token + offset, seen=lease.run.arrivals)
            for lease, offset in leases
        ]

    def _checkpoint(self, plan: Plan) -> Checkpoint | None:
        if len(self.leases) <= plan["lease"]:
            return None
        lease = self.leases[-1 - plan["lease"]]
        run, now = lease.run, self.clock.now()
        known = sorted(self.known[run.id])
        seen = {"known": max(known, default=0), "lease": run.arrivals, "none": 0}[plan["seen"]]
        next = plan["next"]
        if getattr(next, "retry_at", None) is not None:
            next = replace(next, retry_at=now + next.retry_at)
        waits = plan["waits"]
        return Checkpoint(
            run_id=run.id,
            token=run.token + plan["token"],
            seen=seen,
            next=next,
            entries=tuple({entry.location: entry for entry in map(self._entry, plan["entries"])}.values()),
            consumed=tuple(known[index] for index in plan["consumed"] if index < len(known)),
            waits=None if waits is None else tuple(self._wait(run.id, wait, plan) for wait in waits),
            # Children have no keys.
            children=tuple(replace(self._intent(one), key=None) for one in plan["children"]),
            messages=tuple(plan["messages"]),
            events=tuple(plan["events"]),
            # Only of younger runs: cancelling one's own ancestor would be cancelling oneself.
            cancels=tuple(an_id(number) for number in plan["cancels"] if an_id(number) > run.id),
            values=plan["values"],
            charged=plan["charged"],
        )

    def _entry(self, plan: tuple[str, int]) -> Entry:
        """Settled if the number of attempts is 0."""
        location, attempts = plan
        if attempts:
            return a_retry(location, attempts)
        self.position += 1
        return a_step(location, self.position, result=f"{self.position}")

    def _wait(self, run_id: str, wait: Wait, plan: Plan) -> Wait:
        after = self.had[run_id, wait.names[0]] if wait.kind is WaitKind.EVENT and plan["is_after"] else 0
        deadline = None if wait.deadline is None else self.clock.now() + wait.deadline
        return replace(wait, after=after, deadline=deadline)


async def _outcome(operation: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
    """The answer, or the refusal as a value that can be compared."""
    try:
        return await operation(store)
    except KeyConflict as conflict:
        return ("KeyConflict", conflict.run_id, conflict.index)
    except RunNotFound:
        return "RunNotFound"


def _unordered(claimed: Claimed) -> Claimed:
    """A repeated claim: the same leases in any order, and come back at any time."""
    leases = tuple(sorted(claimed.leases, key=lambda lease: lease.run.id))
    return replace(claimed, leases=leases, next_ready_at=None)


def _seen(listed: Sequence[Details]) -> list[Details]:
    """Waits are a set."""
    return [replace(details, waits=tuple(sorted(details.waits, key=lambda wait: wait.location))) for details in listed]


async def _picture(store: Store) -> Plan:
    """Everything a store shows."""
    ids = [an_id(number) for number in range(RUNS)]
    return {
        "now": await store.now(),
        "list": _seen(await store.list(Query(limit=RUNS))),
        "get": [details and _seen([details]) for details in [await store.get(run_id) for run_id in ids]],
        "history": [tuple(await store.history(run_id)) for run_id in ids],
        "audit": [tuple(await store.audit(run_id)) for run_id in ids],
        "keys": [await store.find(key) for key in KEYS],
        "counts": await store.counts(),
        "ends": sorted(await store.ends(ids), key=lambda run: run.id),
        "orphans": sorted(await store.orphans(RUNS)),
        "workers": list(await store.workers()),
    }
