"""An import that races an emit on the key-value store, in every order of their driver calls: no event is lost."""

from __future__ import annotations

import pytest

from holdfast.core.commands import EmitEvents
from holdfast.core.transfer import KeptEvent, Restoration
from holdfast.stores.kv import decision
from holdfast.testing.contract.arrange import an_event, transfer_of
from tests.duration import lasting
from tests.key_value.interleaving import Arena, CallOrder, in_every_order
from tests.plugin.tiers import amount

SWITCHES = amount(short=2, long=4, variable="HOLDFAST_SWITCHES")
LAST_EVENT = 30

pytestmark = [pytest.mark.both_tiers, lasting(20 if SWITCHES > 2 else 2)]


@pytest.fixture(autouse=True)
def immediate_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "FIRST_PAUSE_SECONDS", 0.0)


def an_import(arena: Arena, number: int, topic: str) -> Restoration:
    """Return an export with one event."""
    event = KeptEvent(number=number, topic=topic, id="imported", payload="1", at=arena.clock.now())
    return Restoration(export_id="x", last_event=LAST_EVENT, events=(event,))


@pytest.mark.parametrize("topic", ["paid", "other"])
@pytest.mark.parametrize("is_lossy", [False, True], ids=["", "lost answers"])
async def test_an_event_that_another_process_emits_keeps_no_event_from_being_imported(
    topic: str, *, is_lossy: bool
) -> None:
    """The import skips an event only if the store has used its number before."""

    async def scene(arena: Arena, order: CallOrder) -> None:
        importer, emitter = await arena.stores(2)
        await emitter.apply(EmitEvents(events=[an_event("e1", topic="paid")]))

        restored, _ = await order.race(
            transfer_of(importer).restore(an_import(arena, 20, topic)),
            emitter.apply(EmitEvents(events=[an_event("e2", topic="paid")])),
        )

        kept = await transfer_of(importer).kept_events(0, 10)
        assert {event.id for event in kept} == {"e1", "e2", "imported"}
        assert len({event.number for event in kept}) == 3
        assert restored.skipped == 0

    assert await in_every_order(scene, is_lossy=is_lossy, switches=SWITCHES) > 2


@pytest.mark.parametrize("topic", ["paid", "other"])
async def test_an_imported_event_never_takes_the_number_of_an_event_that_another_process_emits(topic: str) -> None:
    async def scene(arena: Arena, order: CallOrder) -> None:
        importer, emitter = await arena.stores(2)

        restored, _ = await order.race(
            transfer_of(importer).restore(an_import(arena, 1, topic)),
            emitter.apply(EmitEvents(events=[an_event("e1", topic="paid")])),
        )

        kept = await transfer_of(importer).kept_events(0, 10)
        assert restored.events + restored.skipped == 1
        assert len({event.number for event in kept}) == len(kept) == 1 + restored.events

    assert await in_every_order(scene, is_lossy=False, switches=SWITCHES) > 2
