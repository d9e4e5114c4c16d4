"""Contract of hints. Losing a hint may only cost latency, so a store may also send none."""

from __future__ import annotations

import asyncio

from holdfast.core.checkpoint import Release
from holdfast.core.commands import Cancel, EmitEvents, SendMessages
from holdfast.core.model import Reply
from holdfast.core.ports import Store
from holdfast.testing.contract.arrange import (
    TYPE,
    HintRecorder,
    a_message,
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
    write,
)
from holdfast.testing.contract.base import Contract


class HintContract(Contract):
    """A listener gets hints of changes in this store soon after their commit."""

    async def test_a_start_sends_a_hint_that_its_type_is_ready(self, store: Store) -> None:
        """The port: a hint names the types that became ready."""
        listening = HintRecorder(store)

        await start(store, an_intent(1), an_intent(2, type="other"))

        await listening.until("ready", TYPE)
        await listening.until("ready", "other")

    async def test_a_release_a_wake_up_and_a_child_send_hints_that_their_types_are_ready(self, store: Store) -> None:
        """The port: a hint names the types that became ready."""
        leases = [await held(store, number, type=f"t{number}") for number in (1, 2)]
        await suspended(store, 3, for_message("go"), type="t3")
        listening = HintRecorder(store)

        await write(store, checkpoint_for(leases[0], Release()))
        await write(store, checkpoint_for(leases[1], children=(an_intent(4, type="t4"),)))
        await store.apply(SendMessages(messages=[a_message(3)]))

        for type in ("t1", "t3", "t4"):
            await listening.until("ready", type)

    async def test_an_arrival_at_a_held_run_sends_a_hint(self, store: Store) -> None:
        """T1: the holder learns by a hint of a message, an event, or the end of a child."""
        for number in (1, 2, 3):
            lease = await held(store, number)
            await write(store, checkpoint_for(lease, waits=(for_event("paid"),) if number == 2 else ()))
        child = await held(store, 4, parent_id=an_id(3))
        listening = HintRecorder(store)

        await store.apply(SendMessages(messages=[a_message(1)]))
        await store.apply(EmitEvents(events=[an_event()]))
        await write(store, checkpoint_for(child, succeed()))

        for run_id in map(an_id, (1, 2, 3)):
            await listening.until("arrived", run_id)

    async def test_the_end_of_a_run_sends_a_hint(self, store: Store) -> None:
        """The port: a hint names runs that ended by their own code, by a cancel, or with their parent."""
        parent = await held(store, 1)
        await start(store, an_intent(2), an_intent(3, parent_id=an_id(1), on_close="cancel"))
        listening = HintRecorder(store)

        await write(store, checkpoint_for(parent, succeed()))
        await store.apply(Cancel(run_id=an_id(2), id="c"))

        for run_id in map(an_id, (1, 2, 3)):
            await listening.until("ended", run_id)

    async def test_taking_a_run_from_its_holder_sends_a_hint(self, store: Store) -> None:
        """SEMANTICS, control: a running holder learns of a cancel by a hint or at its next renewal."""
        await held(store, 1)
        listening = HintRecorder(store)

        await store.apply(Cancel(run_id=an_id(1), id="c"))

        await listening.until("taken", an_id(1))

    async def test_hints_reach_every_listener_on_its_own_loop(self, store: Store) -> None:
        """The port: hints are delivered on the running event loop, to all listeners."""
        here, loops = asyncio.get_running_loop(), []
        store.listen(lambda _: loops.append(asyncio.get_running_loop()))
        first, second = HintRecorder(store), HintRecorder(store)

        await start(store, an_intent(1))

        await first.until("ready", TYPE)
        await second.until("ready", TYPE)
        assert set(loops) == {here}

    async def test_a_reply_sends_a_hint(self, store: Store) -> None:
        """The port: a caller that waits for a reply looks for it after the hint."""
        lease = await held(store)
        listening = HintRecorder(store)

        await write(store, checkpoint_for(lease, replies=(Reply(message_id="m1", payload="1"),)))

        await listening.until("replied", an_id(1))

    async def test_a_listener_that_stopped_gets_no_hints(self, store: Store) -> None:
        """The port: `listen` returns a function that ends the listening. It may be called again."""
        gone, still = HintRecorder(store), HintRecorder(store)
        gone.stop()
        gone.stop()

        await start(store, an_intent(1))

        await still.until("ready", TYPE)
        assert list(gone.heard) == []
