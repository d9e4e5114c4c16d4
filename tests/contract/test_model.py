"""Every store answers like the model, whatever is done to it; and the machine that says so notices what is wrong.

`HOLDFAST_MODEL_EXAMPLES=2000 pytest tests/contract/test_model.py` looks longer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from msgspec.structs import replace

from holdfast.core.checkpoint import Checkpoint, ClaimRequest, Control, LeaseRequest, Verdict
from holdfast.core.claim_order import Shares
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Entry, Lease, Message, Run, TypeRule
from holdfast.core.ports import Sent
from holdfast.stores.memory import (
    MemoryStore,
    arrivals,
    checkpoints,
    claims,
    controls,
    inboxes,
    limits,
    moves,
    queues,
    revisions,
)
from holdfast.stores.memory.state import Record, State
from holdfast.stores.postgres import deciding, transfers
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.postgres.deciding import Bounds, Operation
from holdfast.stores.postgres.talks import Talk
from holdfast.stores.postgres.wishes import Wishes
from holdfast.stores.postgres.working import WorkingSet
from holdfast.testing.postgres import Databases
from tests.contract.machine import StoreMachine
from tests.contract.side_by_side import SickStore, drive, infect, like_each_time, postgres_stores, sqlite_stores
from tests.duration import lasting
from tests.plugin.tiers import amount

EXAMPLES = amount(short=15, long=150, variable="HOLDFAST_MODEL_EXAMPLES")
POSTGRES_EXAMPLES = amount(short=4, long=40, variable="HOLDFAST_MODEL_EXAMPLES")
"""Fewer, as each of them is a few hundred trips to a server."""
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


def number_without_gaps(monkeypatch: pytest.MonkeyPatch, attempt: Callable[..., Talk[Any]] = deciding._attempt) -> None:
    """Number events as the model does; a sequence leaves out numbers that were drawn in vain."""
    last = 0

    def without_gaps(
        calls: Calls,
        wishes: Wishes,
        operation: Operation[Any],
        at: Micros | None,
        bounds: Bounds,
        *,
        is_committing: bool = False,
    ) -> Talk[Any]:
        seen: list[WorkingSet] = []

        def watched(working: WorkingSet, now: Micros) -> Any:
            seen.append(working)
            return operation(working, now)

        nonlocal last
        number = b"select setval('holdfast.events_number_seq', %s, %s)"
        yield number, (max(1, last), last > 0)
        told = yield from attempt(calls, wishes, watched, at, bounds)
        last = max([last, *(working.event_count for working in seen)])
        yield number, (max(1, last), last > 0)  # for whoever asks how far it is
        if is_committing:
            yield bounds.commit
        return told

    def raised(_schema: str, number: int) -> Talk[None]:
        nonlocal last
        last = max(last, number)
        yield from ()

    monkeypatch.setattr(deciding, "_attempt", without_gaps)
    monkeypatch.setattr(transfers, "_raise_numbers", raised)


def test_the_model_answers_like_itself() -> None:
    drive(StoreMachine, lambda clock: MemoryStore(clock=clock), settings(max_examples=10), STEPS)


# The machine is worth what it finds: each of these bugs stands in for one right function of the memory store.


def writes_without_fence(right: Callable[..., Verdict], state: State, checkpoint: Checkpoint, now: Micros) -> Verdict:
    record = state.records.get(checkpoint.run_id)
    token = record.run.token if record else 0
    return right(state, replace(checkpoint, token=token), now)


def parks_without_looking(right: Callable[..., Verdict], state: State, checkpoint: Checkpoint, now: Micros) -> Verdict:
    return right(state, replace(checkpoint, seen=1_000), now)


def overwrites_entries(right: Callable[..., None], state: State, record: Record, entry: Entry, now: Micros) -> None:
    record.entries.pop(entry.location, None)
    right(state, record, entry, now)


def forgets_crashes(
    right: Callable[..., Lease], state: State, record: Record, by: ClaimRequest | LeaseRequest, now: Micros
) -> Lease:
    record.run = replace(record.run, worker=None)
    return right(state, record, by, now)


def gives_out_by_ready_time(
    right: Callable[..., tuple[list[Record], bool]], state: State, request: ClaimRequest, now: Micros
) -> tuple[list[Record], bool]:
    chosen, has_more = right(state, request, now)
    return sorted(chosen, key=lambda r: (r.run.priority, r.run.ready_at, r.run.id)), has_more


def forgets_what_a_worker_counts(
    right: Callable[..., tuple[list[Record], bool]], state: State, request: ClaimRequest, now: Micros
) -> tuple[list[Record], bool]:
    return right(state, replace(request, shares=Shares()), now)


def forgets_receipts(
    right: Callable[..., None], state: State, record: Record, checkpoint: Checkpoint, now: Micros
) -> None:
    record.receipts.clear()  # between consuming and sending
    right(state, record, checkpoint, now)


def sends_to_the_dead(right: Callable[..., Sent], state: State, message: Message, now: Micros) -> Sent:
    return replace(right(state, message, now), refused=None)


def wakes_nobody(right: Callable[..., None], state: State, record: Record, arrival: Arrival, now: Micros) -> None:
    ready_at = record.run.ready_at
    right(state, record, arrival, now)
    record.run = replace(record.run, ready_at=ready_at)


def leaves_children_alone(right: Callable[..., None], state: State, record: Record, now: Micros) -> None:
    run = record.run
    record.run = replace(run, id="nobody's parent")
    right(state, record, now)
    record.run = run


def keeps_what_a_rewind_waited_for(
    right: Callable[..., bool | None], state: State, run: Run, request: Control, now: Micros
) -> bool | None:
    waits = state.records[run.id].waits
    answer = right(state, run, request, now)
    state.records[run.id].waits = waits
    return answer


def reopens_children_without_a_slot(
    right: Callable[..., bool | None], state: State, run: Run, request: Control, now: Micros
) -> bool | None:
    for record in state.records.values():
        record.run = replace(record.run, options=replace(record.run.options, map_limit=None))
    return right(state, run, request, now)


def tells_every_end_of_a_child(right: Callable[..., None], state: State, run: Run, now: Micros) -> None:
    right(state, replace(run, attempt=1), now)


def pauses_without_asking(  # noqa: PLR0917 - as the function it stands in for
    right: Callable[..., bool], state: State, record: Record, after: Run | None, request: Control, now: Micros
) -> bool:
    after = after and replace(after, is_pausing=False)
    return right(state, record, after, request, now)


def keeps_what_it_was_handed(right: Callable[..., None], state: State, record: Record, now: Micros) -> None:
    """Not to give anything back."""


def hands_nothing_on(
    right: Callable[..., None], state: State, record: Record, now: Micros, *, has_waited: bool
) -> None:
    """Not to give back a slot, nor to leave a queue."""


def lets_everybody_in(right: Callable[..., bool], state: State, record: Record, now: Micros) -> bool:
    right(state, record, now)
    return True


def forgets_who_is_held(right: Callable[..., None], state: State, rule: TypeRule, now: Micros) -> None:
    """Not to count those who are worked on already."""


BUGS: dict[Callable[..., object], tuple[ModuleType, str]] = {
    writes_without_fence: (checkpoints, "_write_one"),
    parks_without_looking: (checkpoints, "_write_one"),
    overwrites_entries: (checkpoints, "_record"),
    forgets_crashes: (claims, "lease"),
    gives_out_by_ready_time: (claims, "choose"),
    forgets_what_a_worker_counts: (claims, "choose"),
    forgets_receipts: (checkpoints, "_send_out"),
    sends_to_the_dead: (arrivals, "send_one"),
    wakes_nobody: (inboxes, "deliver"),
    leaves_children_alone: (moves, "_bury"),
    keeps_what_a_rewind_waited_for: (revisions, "revise"),
    reopens_children_without_a_slot: (revisions, "revise"),
    tells_every_end_of_a_child: (moves, "_tell_parent"),
    pauses_without_asking: (controls, "_change"),
    keeps_what_it_was_handed: (queues, "give_back"),
    hands_nothing_on: (limits, "leave"),
    lets_everybody_in: (limits, "admit"),
    forgets_who_is_held: (limits, "apply"),
}


@pytest.mark.long
@lasting(20)
@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_notices(bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    infect(monkeypatch, *BUGS[bug], bug)

    with pytest.raises(AssertionError):
        drive(StoreMachine, SickStore, like_each_time(2_000), STEPS)
