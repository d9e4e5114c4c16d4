"""Contract of `fork`."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.checkpoint import Suspend
from holdfast.core.clock import SECOND
from holdfast.core.commands import Fork, SendMessages
from holdfast.core.errors import InvalidRequest, RunBusy, RunNotFound
from holdfast.core.model import RunOptions
from holdfast.core.ports import Store
from holdfast.core.questions import Query, VerdictsOn
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    HOSTILE,
    TYPE,
    HintRecorder,
    a_child,
    a_message,
    a_reception,
    a_step,
    an_id,
    an_intent,
    checkpoint_for,
    claim_one,
    for_message,
    held,
    holding_of,
    picture_of,
    start,
    succeed,
    the_run,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

STEPS = (a_step("a", 1, has_undo=True), a_step("b", 2, since=1), a_step("c", 3, since=2))


def a_fork(location: str, to: int = 2, **options: Any) -> Fork:
    return Fork(**{"id": "f", "run_id": an_id(1), "new_run_id": an_id(to), "location": location, **options})


class ForkContract(Contract):
    """A fork is a new run with the history of another run up to a location."""

    async def test_a_fork_has_the_history_before_the_location(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, control: the new run has the history before the location. Copied entries have no undo."""
        options = RunOptions(max_run=3600 * SECOND)
        lease = await held(store, 1, key="k", tags={"shop": "x"}, priority=7, payload='{"n":1}', options=options)
        await write(store, checkpoint_for(lease, succeed(), entries=STEPS))
        before = await picture_of(store, 1)
        clock.advance(SECOND)

        assert await store.apply(a_fork("c")) is True

        run = await the_run(store, 2)
        assert (run.state, run.ready_at, run.created_at, run.start_at) == (RunState.PENDING, *[START + SECOND] * 3)
        assert (run.type, run.payload, run.tags, run.priority, run.key) == (TYPE, '{"n":1}', {"shop": "x"}, 7, None)
        assert (run.options.max_run, run.options.seed) == (3600 * SECOND, an_id(1))
        history = await store.history(an_id(2))
        assert [(entry.location, entry.result, entry.has_undo) for entry in history] == [
            ("a", '"paid"', False),
            ("b", '"paid"', False),
        ]
        assert [entry.retry_at for entry in history] == [None, START + SECOND]
        ((details, entries, facts),) = await picture_of(store, 1)
        assert (details, entries, facts[:-1]) == before[0]

    async def test_the_audit_of_both_runs_names_the_fork(self, store: Store) -> None:
        await write(store, checkpoint_for(await held(store), succeed(), entries=STEPS))

        await store.apply(a_fork("c", patch={"a": "1"}))

        told = [(await store.audit(an_id(number)))[-1] for number in (1, 2)]
        assert [fact.event for fact in told] == ["forked", "forked"]
        assert told[0].data == {"to": an_id(2), "location": "c", "request": "f"}
        assert told[1].data == {"of": an_id(1), "location": "c", "patched": 1, "request": "f"}

    async def test_a_fork_is_listed_and_claimed_like_any_run(self, store: Store) -> None:
        await write(store, checkpoint_for(await held(store, tags={"shop": "x"}), succeed(), entries=STEPS))
        hints = HintRecorder(store)

        await store.apply(a_fork("b"))

        await hints.until("ready", TYPE)
        hints.stop()
        found = await store.list(Query(tags={"shop": "x"}, states=frozenset({RunState.PENDING})))
        assert [details.run.id for details in found] == [an_id(2)]
        lease = await claim_one(store)
        assert (lease.run.id, lease.run.token, [entry.location for entry in lease.entries]) == (an_id(2), 2, ["a"])

    async def test_a_fork_at_the_first_location_has_no_history(self, store: Store) -> None:
        await write(store, checkpoint_for(await held(store), succeed(), entries=STEPS))

        await store.apply(a_fork("a"))

        run = await the_run(store, 2)
        assert (run.token, run.first_claimed_at, run.python) == (0, None, None)
        assert await store.history(an_id(2)) == ()

    @pytest.mark.parametrize("text", HOSTILE)
    async def test_a_patch_gives_an_entry_another_result(self, store: Store, text: str) -> None:
        """SEMANTICS, control: `fork(location, patch=…)`."""
        value = f'"{text.encode("unicode_escape").decode().replace(chr(34), "")}"'
        await write(store, checkpoint_for(await held(store), succeed(), entries=STEPS))

        await store.apply(a_fork("c", patch={"b": value}))

        assert [entry.result for entry in await store.history(an_id(2))] == ['"paid"', value]

    async def test_a_fork_keeps_received_messages_and_gets_no_unread_ones(self, store: Store) -> None:
        lease = await held(store)
        await store.apply(SendMessages(messages=[a_message(), a_message(id="m2")]))
        first, _ = (await store.changes(VerdictsOn(holdings=[holding_of(lease)]))).verdicts[0].arrivals
        entries = (a_reception(first), a_step("b", 2, since=1))
        waits = (for_message("go"),)
        checkpoint = checkpoint_for(lease, Suspend(), entries=entries, consumed=(1,), seen=2, waits=waits)
        await write(store, checkpoint)

        await store.apply(a_fork("b", patch={"receive": "9"}))

        lease = await claim_one(store)
        assert (lease.run.id, lease.arrivals) == (an_id(2), ())
        (entry,) = lease.entries
        assert (entry.ref, '"go",9,' in (entry.result or "")) == ("m1", True)

    # Refusing

    async def test_a_held_run_is_forked_only_by_force_and_keeps_its_holder(self, store: Store) -> None:
        """SEMANTICS, control: `RunBusy` while a worker holds the run. A fork does not take it from its holder."""
        lease = await held(store)
        await write(store, checkpoint_for(lease, entries=STEPS))

        with pytest.raises(RunBusy, match="holds run"):
            await store.apply(a_fork("c"))
        assert await store.apply(a_fork("c", force=True)) is True

        assert not (await write(store, checkpoint_for(lease, succeed()))).is_lost

    async def test_a_fork_cannot_share_an_open_child(self, store: Store) -> None:
        """SEMANTICS, control: a fork is refused with open children."""
        lease = await held(store)
        child = an_intent(3, parent_id=an_id(1), parent_location="call", type="child")
        entries = (a_step("a", 1), a_child(3, since=1), a_step("b", 2, since=1))
        await write(store, checkpoint_for(lease, succeed(), entries=entries, children=(child,)))

        with pytest.raises(InvalidRequest, match="the children 'call' are open"):
            await store.apply(a_fork("b"))
        assert await store.apply(a_fork("a")) is True

    async def test_a_fork_at_an_unknown_location_is_refused_and_names_the_known_ones(self, store: Store) -> None:
        await write(store, checkpoint_for(await held(store), succeed(), entries=STEPS))
        before = await picture_of(store, 1)

        with pytest.raises(InvalidRequest, match="no entry at 'd'; it has 'a', 'b', 'c'"):
            await store.apply(a_fork("d"))
        with pytest.raises(InvalidRequest, match="nothing to patch at 'b' before 'b'; there is 'a'"):
            await store.apply(a_fork("b", patch={"b": "1"}))
        with pytest.raises(RunNotFound):
            await store.apply(a_fork("a", run_id=an_id(9)))
        assert await picture_of(store, 1) == before
        assert await store.get(an_id(2)) is None

    async def test_a_fork_with_an_existing_id_leaves_that_run_unchanged(self, store: Store) -> None:
        """SEMANTICS, starting: a start with an id that exists never touches the existing run."""
        await write(store, checkpoint_for(await held(store), succeed(), entries=STEPS))
        await start(store, an_intent(2))
        before = await picture_of(store, 1, 2)

        assert await store.apply(a_fork("b")) is False
        assert await picture_of(store, 1, 2) == before

    async def test_a_repeated_fork_makes_no_second_run_and_gives_the_same_answer(self, store: Store) -> None:
        """S6: repeats are no-ops."""
        await write(store, checkpoint_for(await held(store), succeed(), entries=STEPS))
        await store.apply(a_fork("b"))
        await write(store, checkpoint_for(await claim_one(store), succeed()))
        before = await picture_of(store, 1, 2)

        assert await store.apply(a_fork("b")) is True
        assert await picture_of(store, 1, 2) == before
