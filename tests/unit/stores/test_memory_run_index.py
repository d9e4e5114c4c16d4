"""The index of runs of the memory store: a claim reads few runs, and changes of runs do not make it grow."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import SECOND, Micros
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory.run_index import OUTDATED, SMALL, RunIndex
from holdfast.stores.memory.state import Record, State
from holdfast.testing.contract.arrange import TYPE, WORKER, an_id, an_intent, claim, for_event, for_time
from holdfast.testing.contract.clock import START

NOW = START


class CountedRecords(dict[str, Record]):
    """Records that count how often one is looked up."""

    looked_up = 0

    def get(self, key: str, default: Record | None = None) -> Record | None:  # type: ignore[override]
        self.looked_up += 1
        return super().get(key, default)


def a_state(count: int) -> State:
    state = State()
    state.indexed()
    for number in range(1, count + 1):
        state.add(rules.new_run(an_intent(number), NOW))
    return state


def due_ids(index: RunIndex, *, limited: Iterable[str] = (), now: Micros = NOW) -> list[str]:
    return [run.id for ranks in index.due([TYPE], [*limited], now) for runs in ranks.values() for run in runs]


def places(index: RunIndex) -> int:
    return sum(len(lane) for lanes in index._lanes.values() for lane in lanes.values())


async def test_a_claim_reads_about_as_many_runs_as_it_leases() -> None:
    store = MemoryStore()
    records = CountedRecords()
    store._state.records = records
    await store.create([an_intent(number) for number in range(1, 5_001)])

    await claim(store, limit=10)  # makes the index
    for _ in range(3):
        records.looked_up = 0
        assert len((await claim(store, limit=10)).leases) == 10
        assert records.looked_up < 100


def test_runs_are_due_in_the_order_of_their_ready_times() -> None:
    state = a_state(3)
    record = state.records[an_id(1)]
    state.put_run(record, replace(record.run, ready_at=NOW + 1))

    assert due_ids(state.indexed()) == [an_id(2), an_id(3)]
    assert due_ids(state.indexed(), now=NOW + 1) == [an_id(2), an_id(3), an_id(1)]


def test_a_run_that_came_back_to_its_place_is_due_once() -> None:
    state = a_state(1)
    record = state.records[an_id(1)]
    first = record.run

    state.put_run(record, replace(first, ready_at=NOW + SECOND))
    state.put_run(record, first)

    assert due_ids(state.indexed()) == [an_id(1)]
    assert due_ids(state.indexed(), limited=[TYPE]) == [an_id(1)]


def test_a_run_that_is_gone_is_neither_due_nor_waiting() -> None:
    state = a_state(2)
    state.put_waits(state.records[an_id(1)], [for_event("paid")])

    state.remove(an_id(1))

    assert due_ids(state.indexed()) == [an_id(2)]
    assert state.indexed().waiting("paid") == []


def test_the_next_ready_run_is_none_that_the_worker_holds() -> None:
    state = a_state(2)
    index = state.indexed()
    for number, holder, ready_at in ((1, WORKER, NOW + 1), (2, "other", NOW + 2)):
        record = state.records[an_id(number)]
        state.put_run(record, replace(record.run, worker=holder, ready_at=ready_at))

    assert index.next_ready_at([TYPE], WORKER) == NOW + 2
    assert index.next_ready_at([TYPE], "other") == NOW + 1
    assert index.next_ready_at(["unknown"], WORKER) is None


def test_a_run_that_moves_a_thousand_times_leaves_few_places() -> None:
    state = a_state(1)
    record = state.records[an_id(1)]

    for later in range(1, 1_001):
        state.put_run(record, replace(record.run, ready_at=NOW + later))

    assert places(state.indexed()) <= SMALL + OUTDATED + 1
    assert due_ids(state.indexed(), now=NOW + 1_000) == [an_id(1)]


def test_a_run_without_a_ready_time_is_not_claimable() -> None:
    state = a_state(1)
    record = state.records[an_id(1)]

    state.put_run(record, replace(record.run, ready_at=None))

    assert due_ids(state.indexed(), now=NOW + SECOND) == []
    assert state.indexed().next_ready_at([TYPE], WORKER) is None
    assert places(state.indexed()) == 0


def test_waits_for_events_are_indexed_by_topic() -> None:
    index = RunIndex({})
    sleep = for_time(NOW)
    paid, sent = for_event("paid"), for_event("sent", location="other")

    index.note_waits("a", (), (paid, sent, sleep))
    index.note_waits("b", (), (paid,))
    assert (index.waiting("paid"), index.waiting("sent")) == (["a", "b"], ["a"])

    index.note_waits("a", (paid, sent, sleep), (sent,))
    assert (index.waiting("paid"), index.waiting("sent")) == (["b"], ["a"])

    index.note_waits("a", (sent,), ())
    index.note_waits("b", (paid,), ())
    assert not index._waiting


def test_a_state_with_runs_gets_its_index_when_it_is_needed() -> None:
    state = State()
    run = rules.new_run(an_intent(1), NOW)
    state.records[run.id] = Record(run, waits=(for_event("paid"),))

    assert due_ids(state.indexed()) == [an_id(1)]
    assert state.indexed().waiting("paid") == [an_id(1)]
    assert state.indexed() is state.indexed()
