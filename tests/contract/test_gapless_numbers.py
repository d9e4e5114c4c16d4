"""The key-value store of the comparing machine numbers events like the model, also in an import."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.commands import EmitEvents
from holdfast.core.model import Run
from holdfast.core.ports import Store
from holdfast.core.states import RunState
from holdfast.core.transfer import Dump, Restoration
from holdfast.testing.contract import START
from holdfast.testing.contract.arrange import TYPE, an_event, an_id, transfer_of
from tests.contract.key_value_stores import dictionary_store
from tests.contract.machine import StoreMachine

OWN = 3
"""Number of events that the store has before the import. It may have used their numbers for other events."""


def a_run_with_events_of_a_queue() -> Dump:
    run = Run(
        id=an_id(1),
        type=TYPE,
        state=RunState.PAUSED,
        payload="{}",
        created_at=START,
        start_at=START,
        updated_at=START,
        arrivals=OWN,
    )
    arrivals = [rules.event_arrival(number, "paid", "1", START, is_exclusive=True) for number in range(1, OWN + 1)]
    return Dump(run=run, inbox=tuple(replace(one, number=int(one.ref or 0)) for one in arrivals))


@pytest.mark.parametrize("last_event", [0, 30])
def test_numbers_that_only_an_imported_run_names_are_counted(last_event: int) -> None:
    dump = a_run_with_events_of_a_queue()

    async def numbers_after_import(store: Store) -> tuple[list[int], list[int]]:
        await store.apply(EmitEvents(events=[an_event(f"own {number}") for number in range(OWN)]))
        await transfer_of(store).restore(Restoration(export_id="x", last_event=last_event, runs=(dump,)))
        await store.apply(EmitEvents(events=[an_event("after")]))
        (moved,) = await transfer_of(store).dump([dump.run.id])
        kept = await transfer_of(store).kept_events(OWN, 10)
        return [int(arrival.ref or 0) for arrival in moved.inbox], [event.number for event in kept]

    machine = StoreMachine(dictionary_store)
    first = max(OWN, last_event) + 1
    assert machine._both(numbers_after_import) == ([*range(first, first + OWN)], [first + OWN])
    machine.teardown()
