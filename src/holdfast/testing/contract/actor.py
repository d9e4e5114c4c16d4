"""Contract of actors: the `by` of a command."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.checkpoint import Suspend
from holdfast.core.commands import (
    Cancel,
    Delete,
    EmitEvents,
    Fork,
    Pause,
    Recover,
    ReplayDeadLetters,
    Resume,
    Rewind,
    RunControl,
    SendMessages,
    Wake,
)
from holdfast.core.ports import Store
from holdfast.testing.contract.arrange import (
    a_message,
    a_step,
    an_event,
    an_id,
    an_intent,
    checkpoint_for,
    for_event,
    for_message,
    held,
    start,
    succeed,
    suspended,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import SettableClock
from holdfast.testing.contract.letter import dead
from holdfast.testing.contract.reopen import family

BY = "ada ☃ 'x' \\ \"y\""

CONTROLS: tuple[tuple[RunControl, str], ...] = (
    (Cancel(run_id=an_id(1), id="x", reason="why", by=BY), "cancelled"),
    (Pause(run_id=an_id(1), id="x", reason="why", by=BY), "paused"),
    (Wake(run_id=an_id(1), id="x", by=BY), "woken"),
    (Rewind(run_id=an_id(1), id="x", location="charge", by=BY), "rewound"),
    (Fork(run_id=an_id(1), id="x", new_run_id=an_id(9), location="charge", by=BY), "forked"),
    (Delete(run_id=an_id(1), id="x", by=BY), "deleted"),
)


async def suspended_after_a_step(store: Store) -> None:
    lease = await held(store)
    await write(store, checkpoint_for(lease, Suspend(), entries=(a_step(),), waits=(for_message("go"),)))


async def actor_of(store: Store, number: int, event: str) -> object:
    """Return the actor of the latest fact of this kind."""
    facts = [fact for fact in await store.audit(an_id(number)) if fact.event == event]
    return facts[-1].data.get("by")


class ActorContract(Contract):
    """The audit names the actor of a change."""

    @pytest.mark.parametrize(("command", "event"), CONTROLS, ids=lambda value: type(value).__name__)
    async def test_a_control_is_audited_with_its_actor(self, store: Store, command: RunControl, event: str) -> None:
        """SEMANTICS, rules for all verbs: all verbs write audit, with the actor (`by`)."""
        await suspended_after_a_step(store)

        assert await store.apply(command) is True

        assert await actor_of(store, 1, event) == BY
        if isinstance(command, Fork):
            assert await actor_of(store, 9, event) == BY

    async def test_a_resumed_run_names_who_resumed_it(self, store: Store) -> None:
        await suspended_after_a_step(store)
        await store.apply(Pause(run_id=an_id(1), id="p", by="somebody else"))

        await store.apply(Resume(run_id=an_id(1), id="r", by=BY))

        assert await actor_of(store, 1, "resumed") == BY

    async def test_a_recovery_names_its_actor_at_every_run_it_reopens(self, store: Store) -> None:
        await family(store, 2)

        await store.apply(Recover(run_id=an_id(1), id="r", by=BY))

        assert [await actor_of(store, number, "recovered") for number in (1, 2)] == [BY, BY]

    async def test_a_run_that_a_message_wakes_names_the_sender(self, store: Store) -> None:
        await suspended(store, 1, for_message("go"))

        await store.apply(SendMessages(messages=[a_message(name="go")], by=BY))

        assert await actor_of(store, 1, "woken") == BY

    async def test_every_run_that_an_event_wakes_names_the_emitter(self, store: Store) -> None:
        for number in (1, 2):
            await suspended(store, number, for_event("paid"))

        await store.apply(EmitEvents(events=[an_event()], by=BY))

        assert [await actor_of(store, number, "woken") for number in (1, 2)] == [BY, BY]

    async def test_a_repeat_by_another_actor_keeps_the_first_actor(self, store: Store) -> None:
        """S6: a repeat changes nothing."""
        await start(store, an_intent(1))
        first = Cancel(run_id=an_id(1), id="c", by=BY)
        await store.apply(first)

        await store.apply(replace(first, by="somebody else"))

        assert await actor_of(store, 1, "cancelled") == BY

    async def test_without_an_actor_the_audit_names_none(self, store: Store) -> None:
        lease = await held(store)
        await store.apply(Pause(run_id=an_id(1), id="p"))
        await write(store, checkpoint_for(lease, succeed()))

        assert all("by" not in fact.data for fact in await store.audit(an_id(1)))
        assert (await the_run(store)).state.is_end

    async def test_a_run_that_a_replayed_dead_letter_wakes_names_who_replayed_it(
        self, store: Store, clock: SettableClock
    ) -> None:
        numbers = await dead(store, clock, "1")
        await suspended(store, 1, for_event("jobs"))

        await store.apply(ReplayDeadLetters(numbers=numbers, by=BY))

        assert await actor_of(store, 1, "woken") == BY
