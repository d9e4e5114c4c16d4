"""Every store answers like the model for all sequences of calls, and the comparing machine detects bugs.

`HOLDFAST_MODEL_EXAMPLES=2000 pytest tests/contract/test_model.py` runs longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from msgspec.structs import replace

from holdfast.core.checkpoint import Checkpoint, ClaimRequest, LeaseRequest, Verdict
from holdfast.core.claim_order import Shares
from holdfast.core.clock import Micros
from holdfast.core.commands import RunControl, Sent
from holdfast.core.flow_definitions import FlowDefinition, RegisteredFlow
from holdfast.core.model import Arrival, Entry, Lease, MessageToRun, Run, TypeOffer, TypeRule, Wait
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory import claims as model_claims
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import arrivals, checkpoints, controls, leases, limits, transitions, types
from holdfast.stores.postgres import transfers, unit_of_work
from holdfast.stores.postgres.scripts import Calls, Script
from holdfast.stores.postgres.unit_of_work import Bounds, Operation
from holdfast.stores.workspace.reads import Reads
from holdfast.stores.workspace.row_unit import RowUnit
from tests.contract.key_value_stores import dictionary_store, forgetful_store, redis_stores
from tests.contract.machine import StoreMachine
from tests.contract.side_by_side import Open, SickStore, drive, infect, like_each_time, postgres_stores, sqlite_stores
from tests.duration import lasting
from tests.plugin.tiers import amount
from tests.postgres import Databases
from tests.redis import Namespaces

EXAMPLES = amount(short=15, long=150, variable="HOLDFAST_MODEL_EXAMPLES")
POSTGRES_EXAMPLES = amount(short=4, long=40, variable="HOLDFAST_MODEL_EXAMPLES")
"""Fewer examples, because each sends a few hundred statements to a server."""
KEY_VALUE_EXAMPLES = amount(short=4, long=60, variable="HOLDFAST_MODEL_EXAMPLES")
"""Fewer examples, because each operation is decided once for each thing that it asks for."""
STEPS = 50


@pytest.mark.both_tiers
@lasting(EXAMPLES / 5)
def test_the_sqlite_store_answers_like_the_model(tmp_path: Path) -> None:
    drive(StoreMachine, sqlite_stores(tmp_path), settings(max_examples=EXAMPLES), STEPS)


@pytest.mark.both_tiers
@lasting(POSTGRES_EXAMPLES)
def test_the_postgres_store_answers_like_the_model(
    postgres_databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as lent:
        stores = postgres_stores(postgres_databases, lent, lambda: number_without_gaps(monkeypatch))
        drive(StoreMachine, stores, settings(max_examples=POSTGRES_EXAMPLES), STEPS)


@pytest.mark.both_tiers
@pytest.mark.parametrize("open_store", [dictionary_store, forgetful_store], ids=["remembering", "forgetful"])
@lasting(KEY_VALUE_EXAMPLES)
def test_the_key_value_store_answers_like_the_model(open_store: Open) -> None:
    """Also if it remembers nothing of the runs that it has leased, like a process that has just reconnected."""
    drive(StoreMachine, open_store, settings(max_examples=KEY_VALUE_EXAMPLES), STEPS)


@pytest.mark.both_tiers
@lasting(POSTGRES_EXAMPLES)
def test_the_redis_store_answers_like_the_model(redis_namespaces: Namespaces) -> None:
    """A claim and a renewal are scripts on the server, which decide like the model too."""
    with ExitStack() as lent:
        drive(StoreMachine, redis_stores(redis_namespaces, lent), settings(max_examples=POSTGRES_EXAMPLES), STEPS)


def number_without_gaps(
    monkeypatch: pytest.MonkeyPatch, attempt: Callable[..., Script[Any]] = unit_of_work._attempt
) -> None:
    """Number events as the model does; a sequence skips numbers of rolled back transactions."""
    last = 0

    def without_gaps(
        calls: Calls,
        reads: Reads,
        operation: Operation[Any],
        at: Micros | None,
        bounds: Bounds,
        *,
        is_committing: bool = False,
    ) -> Script[Any]:
        seen: list[RowUnit] = []

        def watched(unit: RowUnit, now: Micros) -> Any:
            seen.append(unit)
            return operation(unit, now)

        nonlocal last
        number = b"select setval('holdfast.events_number_seq', %s, %s)"
        yield number, (max(1, last), last > 0)
        answer = yield from attempt(calls, reads, watched, at, bounds)
        last = max([last, *(unit.rows.event_count for unit in seen)])
        yield number, (max(1, last), last > 0)  # for a reader of its progress
        if is_committing:
            yield bounds.commit
        return answer

    def raised(_schema: str, number: int) -> Script[int]:
        nonlocal last
        high, last = last, max(last, number)
        yield from ()
        return high

    monkeypatch.setattr(unit_of_work, "_attempt", without_gaps)
    monkeypatch.setattr(transfers, "_raise_numbers", raised)


def test_the_model_answers_like_itself() -> None:
    drive(StoreMachine, lambda clock: MemoryStore(clock=clock), settings(max_examples=10), STEPS)


# Each of these bugs replaces one function of the memory store. The machine must detect it.


def writes_without_fence(
    right: Callable[..., Verdict], unit: StateUnit, checkpoint: Checkpoint, now: Micros
) -> Verdict:
    run = unit.runs.get(checkpoint.run_id)
    return right(unit, replace(checkpoint, token=run.token if run else 0), now)


def parks_without_reading(
    right: Callable[..., Verdict], unit: StateUnit, checkpoint: Checkpoint, now: Micros
) -> Verdict:
    return right(unit, replace(checkpoint, seen=1_000), now)


def overwrites_entries(  # noqa: PLR0917 - as the function it stands in for
    right: Callable[..., None], unit: StateUnit, run_id: str, token: int, entry: Entry, now: Micros
) -> None:
    unit.histories.drop(run_id, [entry.location])
    right(unit, run_id, token, entry, now)


def forgets_crashes(
    right: Callable[..., Lease], unit: StateUnit, run: Run, by: ClaimRequest | LeaseRequest, now: Micros
) -> Lease:
    return right(unit, replace(run, worker=None), by, now)


def gives_out_by_ready_time(
    right: Callable[..., tuple[list[Run], bool]], unit: StateUnit, request: ClaimRequest, now: Micros
) -> tuple[list[Run], bool]:
    chosen, has_more = right(unit, request, now)
    return sorted(chosen, key=lambda run: (run.priority, run.ready_at, run.id)), has_more


def forgets_what_a_worker_counts(
    right: Callable[..., tuple[list[Run], bool]], unit: StateUnit, request: ClaimRequest, now: Micros
) -> tuple[list[Run], bool]:
    return right(unit, replace(request, shares=Shares()), now)


def forgets_receipts(right: Callable[..., None], unit: StateUnit, checkpoint: Checkpoint, now: Micros) -> None:
    unit.state.records[checkpoint.run_id].receipts.clear()  # between consuming and sending
    right(unit, checkpoint, now)


def sends_to_the_dead(
    right: Callable[..., Sent], unit: StateUnit, message: MessageToRun, now: Micros, **by: str
) -> Sent:
    return replace(right(unit, message, now, **by), refused=None)


def wakes_nobody(
    right: Callable[..., None], unit: StateUnit, run: Run, arrival: Arrival, now: Micros, **by: str
) -> None:
    right(unit, run, arrival, now, **by)
    record = unit.state.records[run.id]
    unit.state.put_run(record, replace(record.run, ready_at=run.ready_at))


def leaves_children_alone(right: Callable[..., None], unit: StateUnit, run: Run, now: Micros) -> None:
    children = unit.state.children.pop(run.id, [])
    right(unit, run, now)
    unit.state.children[run.id] = children


def keeps_what_a_rewind_waited_for(
    right: Callable[..., bool | None], unit: StateUnit, run: Run, request: RunControl, now: Micros
) -> bool | None:
    waits = unit.waits.of(run.id)
    answer = right(unit, run, request, now)
    unit.waits.put(run.id, waits)
    return answer


def reopens_children_without_a_slot(
    right: Callable[..., bool | None], unit: StateUnit, run: Run, request: RunControl, now: Micros
) -> bool | None:
    for record in unit.state.records.values():
        record.run = replace(record.run, options=replace(record.run.options, map_limit=None))
    return right(unit, run, request, now)


def notifies_of_every_end_of_a_child(right: Callable[..., None], unit: StateUnit, run: Run, now: Micros) -> None:
    right(unit, replace(run, attempt=1), now)


def pauses_without_asking(
    right: Callable[..., bool], unit: StateUnit, run: Run, request: RunControl, now: Micros
) -> bool:
    is_changed = right(unit, run, request, now)
    after = unit.runs.get(run.id)
    if after is not None and after.stop is not None:
        unit.runs.put(replace(after, stop=None))
    return is_changed


def keeps_what_it_was_handed(
    right: Callable[..., None], unit: StateUnit, run: Run, waits: Sequence[Wait], now: Micros
) -> None:
    """Do not give anything back."""


def hands_nothing_on(right: Callable[..., None], unit: StateUnit, run: Run, now: Micros, *, has_waited: bool) -> None:
    """Do not give back a slot, nor leave a queue."""


def lets_everybody_in(right: Callable[..., Run | None], unit: StateUnit, run: Run, now: Micros) -> Run:
    return right(unit, run, now) or run


def forgets_who_is_held(right: Callable[..., None], unit: StateUnit, rule: TypeRule, now: Micros) -> None:
    """Do not count held runs."""


def leases_entries_for_people(right: Callable[..., Lease], unit: StateUnit, run: Run) -> Lease:
    return replace(right(unit, run), entries=unit.histories.all(run.id))


def forgets_nothing(right: Callable[..., Verdict], unit: StateUnit, checkpoint: Checkpoint, now: Micros) -> Verdict:
    return right(unit, replace(checkpoint, forgotten=0), now)


def forgets_earlier_flows(
    right: Callable[..., RegisteredFlow], unit: StateUnit, definition: FlowDefinition, by: str, now: Micros
) -> RegisteredFlow:
    unit.state.flows.pop(definition.type, None)
    return right(unit, definition, by, now)


def offers_flows_as_code(right: Callable[..., None], unit: StateUnit, worker: str, offers: Sequence[TypeOffer]) -> None:
    """Do not refuse anything."""


BUGS: dict[Callable[..., object], tuple[ModuleType, str]] = {
    writes_without_fence: (checkpoints, "write_one"),
    parks_without_reading: (checkpoints, "write_one"),
    overwrites_entries: (checkpoints, "record"),
    forgets_crashes: (leases, "lease"),
    gives_out_by_ready_time: (model_claims, "choose"),
    forgets_what_a_worker_counts: (model_claims, "choose"),
    forgets_receipts: (checkpoints, "_send_out"),
    sends_to_the_dead: (arrivals, "send_one"),
    wakes_nobody: (arrivals, "deliver"),
    leaves_children_alone: (transitions, "end"),
    keeps_what_a_rewind_waited_for: (controls, "revise"),
    reopens_children_without_a_slot: (controls, "revise"),
    notifies_of_every_end_of_a_child: (transitions, "_notify_parent"),
    pauses_without_asking: (controls, "_change"),
    keeps_what_it_was_handed: (arrivals, "give_back"),
    hands_nothing_on: (limits, "leave"),
    lets_everybody_in: (limits, "admit"),
    forgets_who_is_held: (limits, "apply"),
    leases_entries_for_people: (leases, "lease_of"),
    forgets_nothing: (checkpoints, "write_one"),
    forgets_earlier_flows: (types, "register_flow"),
    offers_flows_as_code: (types, "check_no_flow_is_code"),
}


@pytest.mark.long
@lasting(20)
@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_detects_the_bug(bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    infect(monkeypatch, *BUGS[bug], bug)

    with pytest.raises(AssertionError):
        drive(StoreMachine, SickStore, like_each_time(2_000), STEPS)
