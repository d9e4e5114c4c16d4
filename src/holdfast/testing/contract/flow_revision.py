"""Contract of `rewind`, `recover` and `fork` of flows: a flow goes back to a snapshot that is kept."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint import Finish, Suspend
from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import Fork, Recover, Rewind, SendMessages
from holdfast.core.entries import ADOPTED_LOCATION, FLOW_LOCATION
from holdfast.core.errors import ErrorRecord, InvalidRequest
from holdfast.core.model import EntryState, Lease
from holdfast.core.ports import Store
from holdfast.core.questions import ListFlows
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    TYPE,
    a_child,
    a_message,
    a_reception,
    an_id,
    an_intent,
    checkpoint_for,
    claim_one,
    fail,
    for_child,
    for_message,
    for_time,
    held,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock
from holdfast.testing.contract.flow import a_flow, register
from holdfast.testing.contract.flow_history import a_flow_entry, a_turn, locations_of, of_lease

CHILD_TYPE = "contract.child.v1"
CALL = "@3/call#2"


async def begun(store: Store) -> None:
    """Create a flow whose first turn ended in a wait for a message."""
    lease = await held(store, 1)
    entries = (a_turn(1, 1), a_flow_entry(1))
    await write(store, checkpoint_for(lease, Suspend(), entries=entries, waits=(for_message("go"),)))


async def called(store: Store) -> None:
    """Let the second turn receive the message and call a child."""
    await store.apply(SendMessages(messages=[a_message()]))
    lease = await claim_one(store)
    (arrival,) = lease.arrivals
    entries = (
        a_reception(arrival, "@2/receive#1", 2),
        a_child(2, CALL, since=2),
        a_turn(2, 3, since=2),
        a_flow_entry(2, since=2),
    )
    child = an_intent(2, type=CHILD_TYPE, parent_id=an_id(1), parent_location=CALL, on_close="cancel")
    parts = {"entries": entries, "consumed": (arrival.number,), "children": (child,), "waits": (for_child(2),)}
    await write(store, checkpoint_for(lease, Suspend(), **parts))


async def child_failed(store: Store) -> None:
    """Let the child fail, and the flow with it."""
    await write(store, checkpoint_for(await claim_one(store, type=CHILD_TYPE), fail()))
    lease = await claim_one(store)
    (arrival,) = lease.arrivals
    failed = a_child(2, CALL, 4, since=2, state=EntryState.FAILED, result=None, error=arrival.error)
    error = ErrorRecord(type="ChildFailed", message="no luck", locations=(CALL,))
    end = Finish(state=RunState.FAILED, error=error)
    await write(store, checkpoint_for(lease, end, entries=(failed,), consumed=(arrival.number,), waits=()))


def received(lease: Lease) -> list[tuple[str, str]]:
    return [(arrival.kind.value, arrival.name) for arrival in lease.arrivals]


class FlowRevisionContract(Contract):
    """A flow goes back to a snapshot; what came after it arrives again."""

    async def test_a_rewound_flow_has_an_older_snapshot_and_its_messages_unread(
        self, store: Store, clock: SettableClock
    ) -> None:
        """FLOWS: `rewind` goes back to any snapshot that is kept."""
        await begun(store)
        await called(store)
        clock.advance(DAY)

        assert await store.apply(Rewind(run_id=an_id(1), id="r", location="@2/receive#1")) is True

        lease = await claim_one(store)
        assert lease.entries == (a_flow_entry(1, retry_at=START + DAY),)
        assert received(lease) == [("message", "go")]
        assert await locations_of(store) == ["@turn/1", FLOW_LOCATION]
        assert (await the_run(store, 2)).state is RunState.CANCELLED
        await write(store, checkpoint_for(lease, entries=(a_flow_entry(2, since=5),)))
        assert (await store.history(an_id(1)))[-1] == a_flow_entry(2, since=5)

    async def test_a_rewind_may_be_repeated(self, store: Store) -> None:
        """S6: a lost answer is safe."""
        await begun(store)
        await called(store)
        request = Rewind(run_id=an_id(1), id="r", location="@turn/1")
        await store.apply(request)
        lease = await claim_one(store)

        assert await store.apply(request) is True
        assert not (await write(store, checkpoint_for(lease))).is_lost

    async def test_a_rewind_to_a_forgotten_snapshot_is_refused(self, store: Store) -> None:
        await begun(store)
        await called(store)
        lease = await claim_child_and_end(store)
        entries = (a_child(2, CALL, 4, since=2), a_turn(3, 5, since=4), a_flow_entry(3, since=4))
        waits = (for_time(START + DAY),)
        await write(store, checkpoint_for(lease, Suspend(), entries=entries, waits=waits, consumed=(2,), forgotten=4))

        with pytest.raises(InvalidRequest, match="not kept any more"):
            await store.apply(Rewind(run_id=an_id(1), id="r", location=CALL))
        assert await locations_of(store) == [CALL, "@turn/3", FLOW_LOCATION]

    async def test_a_recovered_flow_awaits_the_reopened_child(self, store: Store, clock: SettableClock) -> None:
        """FLOWS: the failed child that the turn awaited is reopened; the snapshot before that turn counts."""
        await begun(store)
        await called(store)
        await child_failed(store)
        clock.advance(DAY)

        assert await store.apply(Recover(run_id=an_id(1), id="r")) is True

        assert (await the_run(store, 2)).state is RunState.PENDING
        lease = await claim_one(store)
        assert lease.entries == (a_flow_entry(2, since=2, retry_at=START + DAY),)
        assert received(lease) == []
        await write(store, checkpoint_for(lease, Suspend(), waits=(for_child(2),)))
        await write(store, checkpoint_for(await claim_one(store, type=CHILD_TYPE), Finish(state=RunState.SUCCEEDED)))
        assert received(await claim_one(store)) == [("child", an_id(2))]

    async def test_a_child_of_the_failed_turn_is_not_started_twice(self, store: Store) -> None:
        await begun(store)
        await store.apply(SendMessages(messages=[a_message()]))
        lease = await claim_one(store)
        (arrival,) = lease.arrivals
        child = an_intent(2, type=CHILD_TYPE, parent_id=an_id(1), parent_location=CALL)
        entries = (a_reception(arrival, "@2/receive#1", 2), a_child(2, CALL, since=2))
        parts = {"entries": entries, "consumed": (arrival.number,), "children": (child,), "waits": ()}
        await write(store, checkpoint_for(lease, fail(), **parts))

        await store.apply(Recover(run_id=an_id(1), id="r"))

        again = await claim_one(store)
        assert received(again) == [("message", "go")]
        assert of_lease(again) == [ADOPTED_LOCATION, FLOW_LOCATION]
        assert again.entries[0].result == f'{{"{CALL}":"{an_id(2)}"}}'
        assert (await the_run(store, 2)).parent_location == CALL

    async def test_a_fork_has_the_snapshot_and_keeps_its_version_from_being_pruned(
        self, store: Store, clock: SettableClock
    ) -> None:
        """FLOWS: `fork` starts from a snapshot with edited variables."""
        await register(store, a_flow("f"))
        await begun(store)
        await called(store)
        clock.advance(SECOND)
        await register(store, a_flow("g"))
        clock.advance(DAY)
        text = '{"edited":1}'

        request = Fork(run_id=an_id(1), id="f", new_run_id=an_id(5), location="@turn/1", patch={FLOW_LOCATION: text})
        assert await store.apply(request) is True
        await store.apply(Rewind(run_id=an_id(1), id="r", location="@turn/1"))

        assert await locations_of(store, 5) == ["@turn/1", FLOW_LOCATION]
        leases = {lease.run.id: lease for lease in [await claim_one(store), await claim_one(store)]}
        now = START + DAY + SECOND
        assert leases[an_id(5)].entries == (a_flow_entry(1, result=text, retry_at=now),)
        await write(store, checkpoint_for(leases[an_id(1)], fail(), waits=()))
        clock.advance(2 * RUN_RETENTION)
        for _ in range(3):
            await store.prune(10)
        assert await store.get(an_id(1)) is None
        assert [one.version[0] for one in await store.catalog(ListFlows(type=TYPE))] == ["f", "g"]


async def claim_child_and_end(store: Store) -> Lease:
    """Let the child succeed. Return the lease of the flow that gets its end."""
    await write(store, checkpoint_for(await claim_one(store, type=CHILD_TYPE), Finish(state=RunState.SUCCEEDED)))
    lease = await claim_one(store)
    assert received(lease) == [("child", an_id(2))]
    return lease
