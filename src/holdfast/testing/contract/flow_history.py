"""Contract of the history of flows: a claim leaves out the entries for people, and old ones are forgotten."""

from __future__ import annotations

from typing import Any

from holdfast.core.checkpoint import Hold, Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import ChangeTypes
from holdfast.core.entries import FLOW_LOCATION, TURN_PREFIX
from holdfast.core.model import Entry, EntryKind, EntryState, Lease, TypeChange, new_id
from holdfast.core.ports import Store
from holdfast.testing.contract.arrange import (
    HOSTILE,
    LEASE,
    TYPE,
    a_child,
    a_step,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    claim_one,
    for_time,
    held,
    start,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

VERSION = "f" * 64


def a_flow_entry(turn: int, *, since: int = 0, **fields: Any) -> Entry:
    """Build the entry of the newest snapshot."""
    return Entry(
        **{
            "location": FLOW_LOCATION,
            "kind": EntryKind.SNAPSHOT,
            "state": EntryState.STARTED,
            "attempts": turn,
            "result": f'{{"turn":{turn}}}',
            "started_at": START,
            "finished_at": START + turn * SECOND,
            "ref": VERSION,
            "since": since,
            **fields,
        }
    )


def a_turn(turn: int, position: int, *, since: int = 0) -> Entry:
    """Build the entry of a past snapshot."""
    return a_flow_entry(turn, since=since, location=f"{TURN_PREFIX}{turn}", state=EntryState.DONE, position=position)


async def locations_of(store: Store, number: int = 1) -> list[str]:
    return [entry.location for entry in await store.history(an_id(number))]


def of_lease(lease: Lease) -> list[str]:
    return [entry.location for entry in lease.entries]


PEOPLE = (a_step("@1/call#1", 1), a_step(f"@2/{HOSTILE[0]}", 2), a_turn(1, 3, since=2), a_child(7, "@4/start#2"))
OTHERS = (a_step("0", 4), a_step("?", 5), a_step("A", 6), a_step("b/@1", 7), a_step("Ä@", 8), a_flow_entry(1, since=2))


class FlowHistoryContract(Contract):
    """The holder of a flow gets its newest snapshot, and people see what happened."""

    # Leases

    async def test_a_claim_leaves_out_the_entries_for_people(self, store: Store, clock: SettableClock) -> None:
        """FLOWS: resuming loads no history."""
        lease = await held(store, 1)
        entries = (*PEOPLE, *OTHERS)
        await write(store, checkpoint_for(lease, Suspend(), entries=entries, waits=(for_time(START),)))

        again = await claim_one(store)

        assert of_lease(again) == ["0", "?", "A", "b/@1", "Ä@", FLOW_LOCATION]
        assert again.entries[-1] == OTHERS[-1]
        assert {*await locations_of(store)} == {entry.location for entry in entries}

    async def test_a_repeated_claim_leaves_them_out_too(self, store: Store) -> None:
        lease = await held(store, 1)
        entries = (*PEOPLE, *OTHERS)
        await write(store, checkpoint_for(lease, Suspend(), entries=entries, waits=(for_time(START),)))
        claim_id = new_id()
        first = await claim(store, id=claim_id)

        again = await claim(store, id=claim_id, is_repeat=True)

        assert of_lease(first.leases[0]) == of_lease(again.leases[0])
        assert not any(location.startswith("@") for location in of_lease(again.leases[0]))

    async def test_a_claim_within_limits_and_a_takeover_leave_them_out_too(
        self, store: Store, clock: SettableClock
    ) -> None:
        await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=5)]))
        lease = await held_within_limits(store)
        await write(store, checkpoint_for(lease, entries=(*PEOPLE, a_flow_entry(1))))
        clock.advance(LEASE)

        again = await claim_one(store, worker="another")

        assert of_lease(again) == [FLOW_LOCATION]

    async def test_a_run_without_a_snapshot_has_its_entries_for_people_left_out(self, store: Store) -> None:
        lease = await held(store, 1)
        await write(store, checkpoint_for(lease, Suspend(), entries=PEOPLE, waits=(for_time(START),)))

        assert (await claim_one(store)).entries == ()

    # The snapshot

    async def test_each_turn_replaces_the_snapshot_of_the_one_before(self, store: Store) -> None:
        """S2, also in later turns of the same lease, and while the run suspends or ends."""
        lease = await held(store, 1)
        for turn in (1, 2):
            await write(store, checkpoint_for(lease, Hold(), entries=(a_flow_entry(turn, since=turn),)))
        await write(store, checkpoint_for(lease, Suspend(), entries=(a_flow_entry(3),), waits=(for_time(START),)))
        again = await claim_one(store)
        await write(store, checkpoint_for(again, entries=(a_flow_entry(4, since=9),)))

        assert again.entries == (a_flow_entry(3),)
        assert await store.history(an_id(1)) == (a_flow_entry(4, since=9),)

    async def test_a_late_repeat_of_a_turn_does_not_bring_its_snapshot_back(self, store: Store) -> None:
        """S6: a lost answer is safe."""
        lease = await held(store, 1)
        old = checkpoint_for(lease, entries=(a_flow_entry(1),))
        await write(store, old)
        await write(store, checkpoint_for(lease, entries=(a_flow_entry(2),)))

        await write(store, old)

        assert await store.history(an_id(1)) == (a_flow_entry(2),)

    # Forgetting

    async def test_a_checkpoint_forgets_old_entries_for_people(self, store: Store) -> None:
        """Only settled ones below the position: open children and the engine's own entries stay."""
        lease = await held(store, 1)
        await write(store, checkpoint_for(lease, entries=(*PEOPLE, *OTHERS)))

        await write(store, checkpoint_for(lease, entries=(a_turn(2, 9, since=2),), forgotten=3))

        left = {*(entry.location for entry in (*PEOPLE[2:], *OTHERS)), f"{TURN_PREFIX}2"}
        assert {*await locations_of(store)} == left

    async def test_forgetting_may_be_repeated_and_includes_what_the_checkpoint_brings(self, store: Store) -> None:
        """S6: a lost answer is safe."""
        lease = await held(store, 1)
        await write(store, checkpoint_for(lease, entries=PEOPLE))
        brings = checkpoint_for(lease, entries=(a_step("@9/late", 4), a_step("@9/later", 5)), forgotten=5)

        await write(store, brings)
        await write(store, brings)

        assert {*await locations_of(store)} == {"@9/later", "@4/start#2"}

    async def test_a_run_forgets_while_it_suspends_and_while_it_ends(self, store: Store) -> None:
        for number, next in ((1, Suspend()), (2, succeed())):
            lease = await held(store, number)
            await write(store, checkpoint_for(lease, entries=PEOPLE))
            await write(store, checkpoint_for(lease, next, waits=(for_time(START + LEASE),), forgotten=4))

            assert await locations_of(store, number) == ["@4/start#2"]
            assert not (await the_run(store, number)).is_held

    async def test_a_stale_holder_forgets_nothing(self, store: Store) -> None:
        """S2: a checkpoint under an old token is not written at all."""
        lease = await held(store, 1)
        await write(store, checkpoint_for(lease, entries=PEOPLE))
        stale = checkpoint_for(lease, forgotten=9, token=lease.run.token + 1)

        assert (await write(store, stale)).is_lost
        assert len(await locations_of(store)) == len(PEOPLE)


async def held_within_limits(store: Store) -> Lease:
    """Claim a run of a type with limits, which cannot be leased at its creation."""
    await start(store, an_intent(1))
    return await claim_one(store)
