"""A machine that applies the same calls, legal or not, to two stores and compares their answers and their contents.

The memory store is the model. Ids, keys, names and times come from small pools, so that repeats and collisions are
common.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, invariant, rule
from msgspec.structs import replace

from holdfast.core.checkpoint import (
    Block,
    Checkpoint,
    Claimed,
    ClaimRequest,
    ContinueAsNew,
    Created,
    Finish,
    Hold,
    LeaseRequest,
    Next,
    Release,
    StartRollback,
    Suspend,
    Verdicts,
)
from holdfast.core.claim_order import Shares
from holdfast.core.clock import DAY, SECOND, Micros
from holdfast.core.commands import (
    Cancel,
    ChangeTypes,
    EmitEvents,
    OfferTypes,
    PurgeDeadLetters,
    Recover,
    RegisterFlow,
    ReplayDeadLetters,
    RetireWorker,
    SendMessages,
    SetTopics,
)
from holdfast.core.entries import FLOW_LOCATION, UNDO_PREFIX
from holdfast.core.errors import InvalidRequest, KeyConflict, RunBusy, RunNotFound
from holdfast.core.flow_definitions import FLOW_RUNTIME
from holdfast.core.model import (
    Arrival,
    Entry,
    EntryKind,
    EntryState,
    Event,
    Holding,
    Intent,
    Lease,
    MessageToRun,
    Rate,
    Reply,
    RunOptions,
    Topic,
    TypeChange,
    TypeOffer,
    Wait,
    WaitKind,
)
from holdfast.core.ports import Store
from holdfast.core.questions import (
    CountLeases,
    CountReady,
    CountRuns,
    CountSlots,
    Details,
    EndsOf,
    FindOrphans,
    ListDeadLetters,
    ListFlows,
    ListTopics,
    ListTypes,
    Query,
    RepliesTo,
    VerdictsOn,
)
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.revision import RECOVERABLE
from holdfast.core.states import RunState
from holdfast.core.transfer import Dump, KeptEvent, Restoration
from holdfast.testing.contract.arrange import (
    LEASE,
    PYTHON,
    a_child,
    a_reception,
    a_retry,
    a_step,
    a_worker,
    an_error,
    an_id,
    block,
    checkpoint_for,
    fail,
    for_child,
    for_event,
    for_message,
    for_time,
    holder_of,
    succeed,
    transfer_of,
)
from holdfast.testing.contract.flow import a_flow
from holdfast.testing.contract.flow_history import a_flow_entry, a_turn
from tests.contract.side_by_side import Open, SideBySide
from tests.contract.slots import check_slots
from tests.contract.wishes import WISHES, Wish, request_of

Plan = dict[str, Any]
"""Drawn values with the fields of their target, before numbers and offsets become ids and times."""

RUNS = 6
NUMBERS = st.integers(0, RUNS - 1)
TYPES = ("shop", "shop.order", "it's 100%")
OFFERED = ("zoo", *TYPES, "shop.", "shop.orders", "another")
"""Enough types that a store has to search for the existing ones among unknown ones."""
SHARES = tuple(Shares(since_new, since_child) for since_new in (0, 5, 6, 7) for since_child in (0, 5, 6, 7))
"""With few runs, a rank that has waited is rarely served unless it has waited for long."""
KEYS = ("k", "it's %")
NAMES = ("go", "it's %", "stop")
TOPICS = ("paid", "it's_%")
LENGTHS: tuple[Micros, ...] = (1, SECOND, LEASE - 1, LEASE, DAY, 7 * DAY)
STEPS = (("a", 0), ("a", 1), ("a", 2), ("b/it's#2", 0), ("b/it's#2", 1))
"""Locations and attempts of entries; one without attempts is settled."""
TURN = StartRollback(end=RunState.FAILED, error=an_error("no luck"))
RENEW = ContinueAsNew(payload='{"n":2}')
LIMITED = RunOptions(map_limit=1)
WORKERS = ("worker-a", "worker-b", "worker-c")
RULES = tuple(
    Topic(name=name, **rules)
    for name in ("paid", "it's*", "*")
    for rules in ({"mode": "queue"}, {"mode": "queue", "max_pending": 1}, {"mode": "queue", "retention": SECOND}, {})
)
LIMITS: tuple[Plan, ...] = (
    *({"concurrency": count} for count in (None, 1, 1, 2)),
    *({"per_key": per_key} for per_key in ({}, {"it's": 1})),
    *({"rate": rate} for rate in (None, Rate(count=1, period=SECOND), Rate(count=2, period=SECOND))),
    *({"is_enabled": is_enabled} for is_enabled in (True, True, False)),
    {"description": "it's %", "runtime": "go", "retention": SECOND},
)
CHANGES = tuple(TypeChange(name=name, **change) for name in TYPES for change in LIMITS)
MANY = 1_000
COMPARE_EVERY = 10
RETENTIONS: tuple[Micros, ...] = (SECOND, DAY, RUN_RETENTION, RUN_RETENTION)


def often(usual: Any, rare: Sequence[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual] * (2 * len(rare)) + [*rare])


def some_of(*parts: Plan) -> st.SearchStrategy[Plan]:
    """Combine a few of the parts. One draw each, because drawing dominates the run time."""
    return st.lists(st.sampled_from(parts), max_size=3).map(lambda drawn: dict(ChainMap(*drawn)))


INTENTS = st.tuples(
    NUMBERS,
    some_of(
        {},
        *({"type": type} for type in TYPES[1:]),
        {"payload": '{"a":1}'},
        {"payload": '{ "a": 1 }'},
        *({"key": key} for key in KEYS),
        {"key": "k", "reuse": "after_failure"},
        {"key": "k", "reuse": "after_end"},
        {"priority": 0},
        {"priority": 255},
        {"delay": 1},
        {"delay": SECOND},
        *({"tags": {"it's": value}} for value in ("%", "x")),
        {"options": RunOptions(undelivered="dead_letter")},
        {"retention": 1},
        {"retention": SECOND},
        *({"parent": number, "on_close": "cancel"} for number in range(3)),
        *({"parent": number} for number in range(3)),
    ),
)
ADDRESSES = st.tuples(NUMBERS, often(None, KEYS), st.sampled_from(NAMES))
MOVED_EVENTS = 30
MOVES = st.tuples(NUMBERS, NUMBERS, often(None, KEYS))
KEPT = st.tuples(st.integers(1, MOVED_EVENTS), st.sampled_from(TOPICS), st.booleans())
WAITS = st.lists(
    st.sampled_from(
        [
            for_message(),
            for_message("go"),
            for_message("it's %", "stop"),
            for_message("go", location="timed", deadline=SECOND),
            *(for_event(topic, location=location) for topic in TOPICS for location in ("event", "event#2")),
            *map(for_child, range(1, RUNS)),
            *(Wait(location="fan", kind=WaitKind.CHILDREN, since=0, count=count) for count in (1, 2)),
            *map(for_time, LENGTHS),
        ]
    ),
    max_size=3,
    unique_by=lambda wait: wait.location,
)
ENTRIES = st.sampled_from([(), *((one,) for one in STEPS), (STEPS[0], STEPS[-1]), (STEPS[1], STEPS[-2])])
NEXTS = st.sampled_from(
    [
        *[Hold()] * 3,
        *[Suspend()] * 3,
        succeed(),
        fail(),
        block(),
        block(SECOND),
        Release(),
        TURN,
        ContinueAsNew(payload='{"n":2}'),
    ],
)
CHECKPOINTS = st.fixed_dictionaries(
    {
        "lease": st.integers(0, 3),
        "right": often("current", ["stale", "future", "past"]),
        "seen": st.sampled_from(["all", "known", "known", "lease", "none"]),
        "next": NEXTS,
        "entries": ENTRIES,
        "consumed": often((0,), [(), (1,), (0, 1)]),
        "waits": st.none() | WAITS,
        "more": some_of(
            {},
            {"after": True},
            {"charged": True},
            {"values": {"done": "1"}},
            {"beat": 1},
            {"beat": 2},
            {"values": {"it's": '"x"'}},
            *({"child": (number, {"on_close": "cancel"})} for number in range(1, RUNS)),
            {"child": (RUNS - 1, {})},
            *({"child": (number, {"parent_location": f"fan/{number}"})} for number in range(1, RUNS)),
            *(
                {"child": (number, {"parent_location": f"fan/{number}", "is_parked": True})}
                for number in range(1, RUNS)
            ),
            *(
                {"child": (number, {"parent_location": f"fan/{number}", "limit": 1, "options": LIMITED})}
                for number in range(1, RUNS)
            ),
            {"pruned": ("a",)},
            {"pruned": ("b",)},
            *({"turn": True} for _ in range(4)),
            *({"turn": True, "forgotten": age} for age in (0, 3)),
            {"forgotten": 1},
            *({"message": (number, None, "go")} for number in range(RUNS)),
            {"message": (0, "k", "stop")},
            *({"event": topic} for topic in TOPICS),
            *({"reply": number} for number in range(2)),
            *({"cancel": number} for number in range(RUNS)),
        ),
    }
)
FLOWS = st.tuples(st.sampled_from("abc"), st.sampled_from(TYPES))
FLOW_QUERIES = some_of(
    *({"type": type} for type in (*TYPES, "shop.*", "s*", "%")),
    *({"version": version} for version in ("a", "bb", "%")),
    *({"limit": limit} for limit in (1, 2)),
    {"with_texts": True},
)
QUERIES = some_of(
    *({"states": frozenset({state})} for state in RunState),
    {"states": frozenset({RunState.RUNNING, RunState.SUSPENDED})},
    *({"type": type} for type in (*TYPES, "shop.*", "s*", "%")),
    *({"key": key} for key in KEYS),
    {"tags": {"it's": "%"}},
    {"parent_id": an_id(0)},
    {"id_prefix": an_id(0)[:10]},
    {"id_prefix": an_id(1)},
    *({"limit": limit} for limit in range(1, 4)),
    *({"is_deleted": True} for _ in range(3)),
)


class StoreMachine(SideBySide):
    """Drives the model and another store side by side."""

    def __init__(self, open_other: Open) -> None:
        super().__init__(open_other)
        self.claim_ids: list[str] = []
        self.leases: list[Lease] = []
        self.known: dict[str, dict[int, Arrival]] = defaultdict(dict)
        self.had: dict[tuple[str, str], int] = defaultdict(int)
        self.batches: list[list[Checkpoint]] = []
        self.messages: list[MessageToRun] = []
        self.events: list[Event] = []
        self.position = 0
        self.asked = self.compared = 0

    # Actions

    @initialize(plans=st.lists(INTENTS, min_size=2, max_size=4), topic=st.sampled_from(RULES))
    def begin(self, plans: list[tuple[int, Plan]], topic: Topic) -> None:
        """Create some runs, some of them held."""
        self.rule_topic(topic)
        self.create(plans, WORKERS[0])

    @rule(plans=st.lists(INTENTS, min_size=1, max_size=3), worker=often(None, WORKERS))
    def create(self, plans: list[tuple[int, Plan]], worker: str | None) -> None:
        intents = [self._intent(number, plan) for number, plan in plans]
        lease = None
        if worker is not None:
            lease = LeaseRequest(worker=worker, claim_id=self._new_claim_id(), lease=LEASE, python=PYTHON)
        created = self._both(lambda store: store.create(intents, lease))
        if isinstance(created, Created):
            self._learn([run.lease for run in created.runs if run.lease is not None])

    @rule(
        worker=st.sampled_from(WORKERS),
        types=often(TYPES, [TYPES[:1], TYPES[1:], ("shop.",), ()]) | st.just(OFFERED),
        limit=st.integers(1, 4),
        may_suspect=often(usual=True, rare=[False]),
        repeats=often(None, [0, 1, 2]),
        shares=st.sampled_from(SHARES),
    )
    def claim(
        self,
        *,
        worker: str,
        types: tuple[str, ...],
        limit: int,
        may_suspect: bool,
        repeats: int | None,
        shares: Shares = SHARES[0],
    ) -> None:
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
            shares=shares,
        )
        claimed = self._both(
            lambda store: store.claim(request), _unordered if is_repeat else _without_hint_if_full(limit)
        )
        self._learn(claimed.leases)

    @rule(plans=st.lists(CHECKPOINTS, min_size=1, max_size=3))
    def checkpoint(self, plans: list[Plan]) -> None:
        batch = {one.run_id: one for plan in plans if (one := self._checkpoint(plan)) is not None}
        if batch:
            self._write([*batch.values()])

    @rule(plan=CHECKPOINTS, waits=WAITS.filter(len))
    def suspend(self, plan: Plan, waits: list[Wait]) -> None:
        self._behave(plan | {"next": Suspend(), "waits": waits})

    @rule(plan=CHECKPOINTS, next=st.sampled_from([*[Hold()] * 6, succeed(), fail()]))
    def go_on(self, plan: Plan, next: Next) -> None:
        self._behave(plan | {"next": next})

    def _behave(self, plan: Plan) -> None:
        """Write a checkpoint that a correct holder would write."""
        if (checkpoint := self._checkpoint(plan | {"right": "current"})) is not None:
            self._write([checkpoint])

    @rule(topic=st.sampled_from(TOPICS), next=st.sampled_from([Hold(), Suspend(), succeed()]))
    def withdraw(self, topic: str, next: Next) -> None:
        """Let runs wait for an event, emit it, and let one withdraw its wait. Random choices rarely do that."""
        leases = [lease for lease in self.leases if self._is_current(lease)][:2]
        wait = for_event(topic)
        for lease in leases:
            self._write([checkpoint_for(lease, waits=(replace(wait, since=self.clock.now()),))])
        event = self._event(topic)
        self._both(lambda store: store.apply(EmitEvents(events=[event])), list)
        if leases:
            next = self._next(next, leases[0].run.id)
            self._write([checkpoint_for(leases[0], next, seen=MANY, waits=())])

    @rule(index=st.integers(0, 3))
    def repeat_checkpoints(self, index: int) -> None:
        if len(self.batches) > index:
            self._write(self.batches[-1 - index])

    def _write(self, batch: list[Checkpoint]) -> None:
        self.batches.append(batch)
        # A store may write a batch in any order. The order is visible if one checkpoint affects the run of another.
        for some in [[one] for one in batch] if self._is_tangled(batch) else [batch]:
            self._note_arrivals(self._both(partial(_checkpoint, some)))
        for checkpoint in batch:
            for number in checkpoint.consumed:
                arrival = self.known[checkpoint.run_id].get(number)
                if arrival is not None and arrival.kind is WaitKind.EVENT:
                    had = self.had[checkpoint.run_id, arrival.name]
                    self.had[checkpoint.run_id, arrival.name] = max(had, int(arrival.ref or 0))

    def _is_tangled(self, batch: list[Checkpoint]) -> bool:
        """True if a checkpoint of a batch affects the run of another."""
        state = self.model._state
        ids = {one.run_id for one in batch}
        for one in batch:
            record = state.records.get(one.run_id)
            reached = {*one.cancels, *(message.run_id or state.keys.get(message.key or "") for message in one.messages)}
            reached |= {record.run.parent_id} if record is not None else set()
            if reached & (ids - {one.run_id}) or (one.events and len(batch) > 1):
                return True
        return False

    @rule(plans=st.lists(ADDRESSES, max_size=2), again=st.integers(0, 3))
    def send(self, plans: list[tuple[int, str | None, str]], again: int) -> None:
        read = {id for record in self.model._state.records.values() for id in record.receipts}
        repeats = [message for message in self.messages if message.id in read] or self.messages
        messages = [self._message(*plan) for plan in plans] or repeats[-1 - again :][:1]
        self._both(lambda store: store.apply(SendMessages(messages=messages)), list)

    @rule(topics=st.lists(st.sampled_from(TOPICS), max_size=2), again=st.integers(0, 3))
    def emit(self, topics: list[str], again: int) -> None:
        events = [self._event(topic) for topic in topics] or self.events[-1 - again :][:1]
        self._both(lambda store: store.apply(EmitEvents(events=events)), list)

    @rule(index=st.integers(0, 5))
    def satisfy(self, index: int) -> None:
        """Deliver something that a run waits for. Random choices rarely do that."""
        records = sorted(self.model._state.records.values(), key=lambda record: record.run.is_held)
        waits = [(record.run.id, wait) for record in records for wait in record.waits]
        if not waits:
            return
        run_id, wait = waits[index % len(waits)]
        match wait.kind:
            case WaitKind.MESSAGE:
                message = replace(self._message(0, None, wait.names[0] if wait.names else "any"), run_id=run_id)
                self._both(lambda store: store.apply(SendMessages(messages=[message])), list)
            case WaitKind.EVENT:
                event = self._event(wait.names[0])
                self._both(lambda store: store.apply(EmitEvents(events=[event])), list)
            case WaitKind.CHILD:
                self._both(lambda store: store.apply(Cancel(run_id=wait.names[0], id="c")))
            case WaitKind.CHILDREN | WaitKind.SLOT:
                family = [record.run.id for record in records if record.run.group == wait.names[0]]
                if family:
                    self._both(
                        lambda store: store.apply(Cancel(run_id=family[index % len(family)], id="c", force=True))
                    )
            case WaitKind.TIME | WaitKind.RETRY:
                self.clock.advance(max(0, (wait.deadline or 0) - self.clock.now()))

    @rule(topic=st.sampled_from(RULES))
    def rule_topic(self, topic: Topic) -> None:
        self._both(lambda store: store.apply(SetTopics(topics=[topic])))

    @rule(changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=2))
    def change_types(self, changes: list[TypeChange]) -> None:
        self._both(lambda store: store.apply(ChangeTypes(changes=changes)))

    @rule(type=st.sampled_from(TYPES), worker=st.sampled_from(WORKERS))
    def compete(self, type: str, worker: str) -> None:
        """Let runs compete for one slot, and one of them release it. Random choices rarely do that."""
        self.change_types([TypeChange(name=type, concurrency=1, is_enabled=True)])
        request = ClaimRequest(
            id=self._new_claim_id(), worker=worker, types=(type,), limit=RUNS, lease=LEASE, python=PYTHON
        )
        self._learn(self._both(lambda store: store.claim(request)).leases)
        held = [lease for lease in self.leases if self._is_current(lease) and lease.run.type == type]
        if held:
            self._write([checkpoint_for(held[-1], block())])

    @rule(
        plans=st.lists(INTENTS, max_size=3),
        count=st.integers(0, 2),
        limit=st.integers(1, RUNS),
        shares=st.sampled_from(SHARES),
    )
    def line_up(self, plans: list[tuple[int, Plan]], count: int, limit: int, shares: Shares) -> None:
        """Let started runs be ready beside children and new starts. Random choices rarely do that."""
        self.create(plans, None)
        for lease in [lease for lease in self.leases if self._is_current(lease)][:count]:
            self._write([checkpoint_for(lease, Release(), seen=MANY)])
        self.claim(worker=WORKERS[0], types=OFFERED, limit=limit, may_suspect=True, repeats=None, shares=shares)

    @rule(
        name=st.sampled_from(TYPES),
        worker=st.sampled_from(WORKERS),
        runtime=st.sampled_from(["python", FLOW_RUNTIME]),
        steps=st.integers(0, 3),
    )
    def offer_types(self, name: str, worker: str, runtime: str, steps: int) -> None:
        plan = tuple(f"step {number}" for number in range(steps))
        offer = TypeOffer(name=name, runtime=runtime, description="%", plan=plan)
        self._both(lambda store: store.apply(OfferTypes(worker=worker, offers=[offer])))

    @rule(flow=FLOWS, code=st.integers(1, 2), by=st.sampled_from(WORKERS))
    def register_flow(self, flow: tuple[str, str], code: int, by: str) -> None:
        definition = a_flow(*flow, program=f"{code}", instruction_set=code)
        self._both(lambda store: store.apply(RegisterFlow(definition=definition, by=by)))

    @rule(query=FLOW_QUERIES)
    def list_flows(self, query: Plan) -> None:
        first = self._both(lambda store: store.catalog(ListFlows(**query)), list)
        if first:
            after = (first[-1].type, first[-1].registered_at)
            self._both(lambda store: store.catalog(ListFlows(**query, after=after)), list)

    @rule(
        kind=st.sampled_from(["prune", "prune one", "dry run", "replay", "purge"]),
        number=st.integers(0, 2),
        retention=st.sampled_from(RETENTIONS),
    )
    def tidy(self, kind: str, number: int, retention: Micros) -> None:
        letters = [*self.model._state.letters, 99][number:][:2]
        match kind:
            case "prune":
                self._both(lambda store: store.prune(MANY, retention=retention))
            case "prune one" if self._has_only_runs():
                self._both(lambda store: store.prune(1, retention=retention))
            case "prune one":
                return  # among runs of equal age, stores may choose any
            case "dry run":
                self._both(lambda store: store.prune(MANY, retention=retention, is_dry_run=True))
            case "replay":
                self._both(lambda store: store.apply(ReplayDeadLetters(numbers=letters)))
            case _:
                self._both(lambda store: store.apply(PurgeDeadLetters(numbers=letters)))

    def _has_only_runs(self) -> bool:
        state = self.model._state
        return not any(state.events.values()) and not any(r.receipts or r.replies for r in state.records.values())

    @rule(
        runs=st.lists(MOVES, max_size=3),
        events=st.lists(KEPT, max_size=3),
        flows=st.lists(FLOWS, max_size=1),
        export=st.integers(0, 3),
        is_last=often(usual=False, rare=[True]),
    )
    def restore(
        self,
        *,
        runs: list[tuple[int, int, str | None]],
        events: list[tuple[int, str, bool]],
        flows: list[tuple[str, str]],
        export: int,
        is_last: bool,
    ) -> None:
        """Import runs that resemble existing ones, and unknown events."""
        dumps = [
            _moved(dump, an_id(to), key)
            for of, to, key in runs
            for dump in self.loop.run_until_complete(transfer_of(self.model).dump([an_id(of)]))
        ]
        kept = {
            number: KeptEvent(
                number=number, topic=topic, id=f"k{number}", payload=f"{number}", at=self.clock.now(), is_queued=queued
            )
            for number, topic, queued in sorted(events)
        }
        restoration = Restoration(
            export_id=f"x{export}",
            last_event=MOVED_EVENTS,
            runs=tuple(dumps),
            events=tuple(kept.values()),
            flows=tuple(a_flow(*flow, program="1", registered_at=self.clock.now() - SECOND) for flow in flows),
            is_last=is_last,
        )
        self._both(lambda store: transfer_of(store).restore(restoration))

    @rule(length=st.sampled_from(LENGTHS))
    def advance(self, length: Micros) -> None:
        self.clock.advance(length)

    @rule(
        kind=st.sampled_from(["renew", "renew", "check", "retire", "list"]),
        worker=st.sampled_from(WORKERS),
        plans=st.lists(st.tuples(st.integers(0, 5), often(0, [1, -1])), max_size=3),
        query=QUERIES,
    )
    def meddle(self, kind: str, worker: str, plans: list[tuple[int, int]], query: Plan) -> None:
        """Perform occasional requests from outside."""
        holdings = self._holdings(plans)

        async def renew(store: Store) -> Verdicts:
            return await asyncio.to_thread(store.renew, a_worker(worker), holdings, LEASE)

        match kind:
            case "renew":
                self._note_arrivals(self._both(renew))
            case "check":
                self._note_arrivals(self._both(lambda store: store.changes(VerdictsOn(holdings=holdings))))
            case "retire":
                self._both(lambda store: store.apply(RetireWorker(worker_id=worker)))
            case _:
                self._list(query)

    @rule(number=NUMBERS, wish=WISHES)
    def control(self, number: int, wish: Wish) -> None:
        record = self.model._state.records.get(an_id(number))
        request = request_of(wish, an_id(number), [entry.location for entry in record.history()] if record else [])
        self._both(lambda store: store.apply(request))

    @rule(index=st.integers(0, 5), limit=st.integers(1, 3))
    def recover(self, index: int, limit: int) -> None:
        """Recover a failed run and every run that was reopened with it. Random choices rarely do that."""
        runs = [record.run for record in self.model._state.records.values() if record.run.state in RECOVERABLE]
        if wrong := [run.id for run in runs if run.deleted_at is None]:
            run_id = wrong[index % len(wrong)]
            request = Recover(run_id=run_id, id=f"recover-{self.asked}", limit=limit)
            while self._both(lambda store: store.apply(request)) is None:
                pass

    @rule(number=st.integers(1, RUNS - 1), is_read=st.booleans(), next=st.sampled_from([succeed(), fail()]))
    def reopen(self, number: int, is_read: bool, next: Next) -> None:
        """Let a child end, be recovered, and end again while its parent lives. Random choices rarely do that."""
        current = [lease for lease in self.leases if self._is_current(lease) and lease.run.id < an_id(number)]
        if not current or an_id(number) in self.model._state.records:
            return
        fan = {} if is_read else {"parent_location": f"fan/{number}", "limit": 1, "options": LIMITED}
        child = self._intent(number, {"parent": _number_of(current[0].run.id)} | fan)
        begun = a_child(number, child.parent_location or "", since=self.position)
        self._write([checkpoint_for(current[0], children=(child,), entries=(begun,))])
        for end in (fail(), next):
            self.claim(worker=WORKERS[0], types=TYPES, limit=RUNS, may_suspect=True, repeats=None)
            for lease in [one for one in self.leases if one.run.id == child.id and self._is_current(one)]:
                self._write([checkpoint_for(lease, end, seen=MANY)])
            if is_read and self._is_current(current[0]):
                inbox = self.model._state.records[current[0].run.id].inbox
                ends = tuple(sorted(n for n, one in inbox.items() if one.name == child.id))
                entries = tuple(self._records(current[0].run.id, ends, {}))
                self._write([checkpoint_for(current[0], consumed=ends, entries=entries, seen=MANY)])
            self._both(lambda store: store.apply(Recover(run_id=child.id, id=f"recover-{self.asked}")))

    def _list(self, query: Plan) -> None:
        now = self.clock.now()
        first = self._both(lambda store: store.list(Query(**query)), _seen)
        if first:
            last = first[-1].run
            self._both(lambda store: store.list(Query(**query, before=(last.created_at, last.id))), _seen)
        self._both(lambda store: store.list(Query(**query, created_until=now)), _seen)
        self._both(lambda store: store.list(Query(**query, created_from=now)), _seen)

    # Comparisons

    @invariant()
    def both_show_the_same(self) -> None:
        if self.compared == self.asked:
            return
        self.compared = self.asked
        # A damaged run stays damaged, so each step compares one run in turn, and all of them occasionally.
        numbers = range(RUNS) if self.asked % COMPARE_EVERY == 0 else [self.asked % RUNS]

        async def pictures() -> tuple[Plan, Plan]:
            return await _picture(self.model, numbers), await _picture(self.other, numbers)

        check_slots(self.model._state, self.clock.now())
        model, other = self.loop.run_until_complete(pictures())
        for name, shown in model.items():
            assert other[name] == shown, name

    def _both(self, operation: Callable[[Store], Awaitable[Any]], normal: Callable[[Any], Any] | None = None) -> Any:
        """Ask both stores and check that the answers are equal. Return the model's."""

        async def ask() -> tuple[Any, Any]:
            return await _outcome(operation, self.model), await _outcome(operation, self.other)

        self.asked += 1
        answers = self.loop.run_until_complete(ask())
        model, other = [normal(answer) if normal else answer for answer in answers]
        assert other == model
        return model

    # State of the machine

    def _new_claim_id(self) -> str:
        self.claim_ids.append(f"claim-{len(self.claim_ids)}")
        return self.claim_ids[-1]

    def _learn(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self.leases.append(lease)
            self.known[lease.run.id] |= {arrival.number: arrival for arrival in lease.arrivals}

    def _note_arrivals(self, answer: Verdicts) -> None:
        for verdict in answer.verdicts:
            self.known[verdict.run_id] |= {arrival.number: arrival for arrival in verdict.arrivals}

    # Values from plans

    def _intent(self, number: int, plan: Plan) -> Intent:
        fields: Plan = {"id": an_id(number), "type": TYPES[0], "payload": "{}"} | plan
        # Parents are older than their children, as in reality, so that no run is its own ancestor.
        if (parent := fields.pop("parent", number)) < number:
            fields = {"parent_location": f"call#{an_id(number)}", **fields, "parent_id": an_id(parent)}
        else:
            alone = ("parent_location", "is_parked", "limit")
            fields = {name: value for name, value in fields.items() if name not in alone}
        return Intent(**fields)

    def _message(self, number: int, key: str | None, name: str) -> MessageToRun:
        # Plain numbers as ids: a store must not confuse them with the numbers of events.
        id = f"{len(self.messages) + 1}"
        self.messages.append(MessageToRun(id=id, name=name, payload=id, run_id=None if key else an_id(number), key=key))
        return self.messages[-1]

    def _event(self, topic: str) -> Event:
        id = f"e{len(self.events)}"
        self.events.append(Event(id=id, topic=topic, payload=f'"{id}"'))
        return self.events[-1]

    def _holdings(self, plans: Sequence[tuple[int, int]]) -> Sequence[Holding]:
        leases = [(self.leases[-1 - index], offset) for index, offset in plans if len(self.leases) > index]
        return [
            Holding(run_id=lease.run.id, token=lease.run.token + offset, seen=lease.run.arrivals)
            for lease, offset in leases
        ]

    def _checkpoint(self, plan: Plan) -> Checkpoint | None:
        there = [lease for lease in self.leases if lease.run.id in self.model._state.records]
        leases = [lease for lease in there if plan["right"] != "current" or self._is_current(lease)]
        if not leases:
            return None
        run = leases[-1 - plan["lease"] % len(leases)].run
        known, unread = self.known[run.id], sorted(self.model._state.records[run.id].inbox)
        waits, more = plan["waits"], plan["more"]
        consumed = tuple(unread[index] for index in plan["consumed"] if index < len(unread))
        arrivals = self.model._state.records[run.id].run.arrivals
        seen = {"all": arrivals, "known": max(known, default=0), "lease": run.arrivals, "none": 0}
        entries = (*map(self._entry, plan["entries"]), *self._records(run.id, consumed, more), *self._undone(run.id))
        if "turn" in more:
            entries = (*entries, *self._turn(run.id))
        return Checkpoint(
            run_id=run.id,
            token=run.token + {"future": 1, "past": -1}.get(plan["right"], 0),
            seen=seen[plan["seen"]],
            next=self._next(plan["next"], run.id, entries),
            entries=entries,
            consumed=consumed,
            waits=None if waits is None else tuple(self._wait(run.id, wait, plan) for wait in waits),
            children=tuple(
                self._intent(number, options | {"parent": _number_of(run.id)})
                for number, options in _some(more, "child")
            ),
            messages=tuple(self._message(*address) for address in _some(more, "message")),
            events=tuple(self._event(topic) for topic in _some(more, "event")),
            replies=tuple(Reply(message_id=f"{number}", payload=run.id) for number in _some(more, "reply")),
            # Only younger runs: a run that cancels its ancestor would cancel itself.
            cancels=tuple(an_id(number) for number in _some(more, "cancel") if an_id(number) > run.id),
            pruned=more.get("pruned", ()),
            forgotten=max(0, self.position - more["forgotten"]) if "forgotten" in more else 0,
            values=more.get("values", {}),
            beat=more.get("beat", 0),
            charged=more.get("charged", False),
        )

    def _records(self, run_id: str, consumed: Sequence[int], more: Plan) -> Iterator[Entry]:
        """Return the entries for consumed arrivals and started children."""
        for number in consumed:
            self.position += 1
            arrival = self.model._state.records[run_id].inbox[number]
            if arrival.kind is not WaitKind.CHILD:
                yield a_reception(arrival, f"receive#{arrival.ref}", self.position)
            else:
                yield self._end_of(arrival)
        for number, options in _some(more, "child"):
            location = options.get("parent_location", f"call#{an_id(number)}")
            # Some of them do not record that they are awaited.
            yield a_child(number, location, since=self.position, attempts=int(number < RUNS - 1))

    def _end_of(self, arrival: Arrival) -> Entry:
        """Return the recorded end of a child, if its parent knows it."""
        child = self.model._state.records.get(arrival.name)
        location = (child and child.run.parent_location) or f"call#{arrival.name}"
        ended: Plan = {"since": self.position - 2}
        if arrival.state is not RunState.SUCCEEDED:
            ended |= {"state": EntryState.FAILED, "error": arrival.error, "result": None}
        return a_child(_number_of(arrival.name), location, self.position, **ended)

    def _turn(self, run_id: str) -> Iterator[Entry]:
        """Return the snapshot of a flow, and its copy for people."""
        known = self.model._state.records[run_id].entries.get(FLOW_LOCATION)
        turn, since = (known.attempts if known is not None else 0) + 1, self.position
        self.position += 1
        yield a_turn(turn, self.position, since=since)
        yield a_flow_entry(turn, since=since)

    def _undone(self, run_id: str) -> Iterator[Entry]:
        """Let each checkpoint of a run that rolls back record an undo."""
        record = self.model._state.records[run_id]
        if record.run.rollback is not None:
            for entry in [entry for entry in record.entries.values() if entry.has_undo][:1]:
                self.position += 1
                yield a_step(f"{UNDO_PREFIX}{entry.location}", self.position, None, kind=EntryKind.UNDO)

    def _next(self, next: Next, run_id: str, entries: Sequence[Entry] = ()) -> Next:
        if isinstance(next, Finish) and next.error is not None:
            # A failure refers to all failed entries except the first, which was caught.
            known = [*self.model._state.records[run_id].history(), *entries]
            at = [entry.location for entry in known if entry.state is EntryState.FAILED][1:]
            next = replace(next, error=replace(next.error, locations=tuple(at)))
        is_rolling_back = self.model._state.records[run_id].run.rollback is not None
        if is_rolling_back and isinstance(next, (Finish, StartRollback, ContinueAsNew)):
            return fail()  # a run that rolls back can neither succeed nor start another rollback
        if isinstance(next, Block) and next.retry_at is not None:
            return replace(next, retry_at=self.clock.now() + next.retry_at)
        return next

    def _is_current(self, lease: Lease) -> bool:
        record = self.model._state.records.get(lease.run.id)
        return record is not None and record.run.is_held and record.run.token == lease.run.token

    def _entry(self, plan: tuple[str, int]) -> Entry:
        """Return an entry that is settled if the number of attempts is 0."""
        location, attempts = plan
        if attempts:
            return replace(a_retry(location, attempts), since=self.position)
        self.position += 1
        has_undo = location.startswith("b/")
        return a_step(location, self.position, f"{self.position}", since=self.position - 1, has_undo=has_undo)

    def _wait(self, run_id: str, wait: Wait, plan: Plan) -> Wait:
        after = self.had[run_id, wait.names[0]] if wait.kind is WaitKind.EVENT and "after" in plan["more"] else 0
        deadline = None if wait.deadline is None else self.clock.now() + wait.deadline
        names = (f"{run_id}/fan",) if wait.kind is WaitKind.CHILDREN else wait.names
        return replace(wait, names=names, after=after, deadline=deadline)


def _moved(dump: Dump, run_id: str, key: str | None) -> Dump:
    """Return a dump with the id of another run."""
    audit = tuple(replace(fact, run_id=run_id) for fact in dump.audit)
    return replace(dump, run=replace(dump.run, id=run_id, key=key), audit=audit)


def _still(dumps: Sequence[Dump]) -> list[Dump]:
    """Compare waits as a set."""
    return [replace(dump, waits=tuple(sorted(dump.waits, key=lambda wait: wait.location))) for dump in dumps]


def _some(parts: Plan, name: str) -> Sequence[Any]:
    return [parts[name]] if name in parts else []


def _number_of(run_id: str) -> int:
    return [an_id(number) for number in range(RUNS)].index(run_id)


async def _outcome(operation: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
    """Return the answer, or the refusal as a comparable value."""
    try:
        return await operation(store)
    except KeyConflict as conflict:
        return ("KeyConflict", conflict.run_id, conflict.index)
    except (RunNotFound, RunBusy, InvalidRequest) as refusal:
        return (type(refusal).__name__, str(refusal))


def _without_hint_if_full(limit: int) -> Callable[[Claimed], Claimed]:
    """Ignore the next ready time of a claim that got as many runs as it asked for: it is repeated at once."""
    return lambda claimed: replace(claimed, next_ready_at=None) if len(claimed.leases) == limit else claimed


def _unordered(claimed: Claimed) -> Claimed:
    """Ignore the order of leases and the next ready time of a repeated claim."""
    leases = tuple(sorted(claimed.leases, key=lambda lease: lease.run.id))
    return replace(claimed, leases=leases, next_ready_at=None)


def _checkpoint(batch: Sequence[Checkpoint], store: Store) -> Awaitable[Verdicts]:
    return store.checkpoint(batch)


def _seen(listed: Sequence[Details]) -> list[Details]:
    """Compare waits as a set."""
    return [replace(details, waits=tuple(sorted(details.waits, key=lambda wait: wait.location))) for details in listed]


async def _picture(store: Store, numbers: Sequence[int]) -> Plan:
    """Return everything a store shows, for all runs and for some in particular."""
    ids = [an_id(number) for number in range(RUNS)]
    some = [an_id(number) for number in numbers]
    details = await store.get(some[0])
    return {
        "list": _seen(await store.list(Query(limit=RUNS))),
        "deleted": _seen(await store.list(Query(is_deleted=True, limit=RUNS))),
        "get": details and _seen([details]),
        "history": [tuple(one) for one in await asyncio.gather(*map(store.history, some))],
        "audit": [tuple(one) for one in await asyncio.gather(*map(store.audit, some))],
        "dumps": _still(await transfer_of(store).dump(some)),
        "kept events": list(await transfer_of(store).kept_events(0, MANY)),
        "keys": await asyncio.gather(*(holder_of(store, key) for key in KEYS)),
        "counts": await store.stats(CountRuns()),
        "ends": sorted(await store.changes(EndsOf(run_ids=ids)), key=lambda run: run.id),
        "orphans": sorted(await store.stats(FindOrphans(limit=RUNS))),
        "backlog": list(await store.stats(CountReady())),
        "workers": list(await store.workers()),
        "held": await store.stats(CountLeases()),
        "topics": list(await store.catalog(ListTopics())),
        "types": list(await store.catalog(ListTypes())),
        "flows": list(await store.catalog(ListFlows(with_texts=True))),
        "slots": list(await store.stats(CountSlots())),
        "slots of a type": list(await store.stats(CountSlots(type=TYPES[0]))),
        "letters": list(await store.catalog(ListDeadLetters(limit=MANY))),
        "letters of a topic": list(await store.catalog(ListDeadLetters(topic="it's*"))),
        "replies": await store.changes(
            RepliesTo(messages=[(run_id, f"{message}") for run_id in ids for message in range(2)])
        ),
        "now": await store.now(),
    }
