"""Contract of starts: `create`."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.checkpoint import LeaseRequest
from holdfast.core.clock import SECOND
from holdfast.core.commands import Cancel
from holdfast.core.errors import KeyConflict
from holdfast.core.model import Reuse, Run
from holdfast.core.ports import Store
from holdfast.core.questions import CountRuns, Query
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    HOSTILE,
    LEASE,
    PYTHON,
    TYPE,
    WORKER,
    an_id,
    an_intent,
    claim,
    claimed_ids,
    ended,
    facts_of,
    held,
    holder_of,
    start,
    the_run,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock

LEASE_REQUEST = LeaseRequest(worker=WORKER, claim_id="claim-1", lease=LEASE, python=PYTHON)


class StartContract(Contract):
    """A start creates a run once, wholly, and as its intent says."""

    async def test_a_new_run_is_pending_and_ready_at_once(self, store: Store) -> None:
        """T5: a pending run is ready at its start time. S7: by the store's clock."""
        created = await store.create([an_intent(1)])

        assert created.now == START
        assert [(run.run_id, run.created, run.lease) for run in created.runs] == [(an_id(1), True, None)]
        assert await the_run(store) == Run(
            id=an_id(1),
            type=TYPE,
            state=RunState.PENDING,
            payload="{}",
            created_at=START,
            start_at=START,
            updated_at=START,
            ready_at=START,
        )

    async def test_a_run_has_all_fields_of_its_intent(self, store: Store) -> None:
        """SEMANTICS, starting: key, priority, tags and lineage come from the intent."""
        await start(store, an_intent(1))
        wish = an_intent(
            2,
            type="billing.invoice.v1",
            payload='{"order":17}',
            key="order-17",
            priority=7,
            tags={"shop": "x", "zone": ""},
            parent_id=an_id(1),
            parent_location="call",
            on_close="cancel",
        )
        await start(store, wish)

        run = await the_run(store, 2)
        assert (run.type, run.payload, run.key) == (wish.type, wish.payload, wish.key)
        assert (run.priority, run.tags) == (wish.priority, wish.tags)
        assert (run.parent_id, run.parent_location, run.on_close) == (an_id(1), "call", "cancel")

    async def test_a_delay_counts_from_the_start_time_or_from_now_if_that_has_passed(self, store: Store) -> None:
        """SEMANTICS, starting: `ready_at` and `delay`."""
        await start(
            store,
            an_intent(1, delay=5 * SECOND),
            an_intent(2, start_at=START + 60 * SECOND),
            an_intent(3, start_at=START + 60 * SECOND, delay=5 * SECOND),
            an_intent(4, start_at=START - 60 * SECOND),
        )

        runs = [await the_run(store, number) for number in (1, 2, 3, 4)]
        assert [run.ready_at for run in runs] == [run.start_at for run in runs]
        assert [run.start_at - START for run in runs] == [5 * SECOND, 60 * SECOND, 65 * SECOND, 0]

    async def test_a_delayed_run_is_not_claimed_a_microsecond_early(self, store: Store, clock: SettableClock) -> None:
        """S7: the store's clock decides due times."""
        await start(store, an_intent(1, delay=SECOND))

        clock.advance(SECOND - 1)
        assert await claimed_ids(store) == []
        clock.advance(1)
        assert await claimed_ids(store) == [an_id(1)]

    async def test_many_runs_are_created_in_one_call_and_answered_in_order(self, store: Store) -> None:
        """SEMANTICS, starting: `start_many` creates thousands in one round trip."""
        numbers = [*range(1_000, 0, -1)]

        created = await store.create([an_intent(number) for number in numbers])

        assert [run.run_id for run in created.runs] == [an_id(number) for number in numbers]
        assert await store.stats(CountRuns()) == {TYPE: {RunState.PENDING: 1_000}}

    async def test_creating_no_runs_returns_an_empty_answer(self, store: Store) -> None:
        """The port: each operation is plural and accepts an empty list."""
        assert (await store.create([])).runs == ()

    # Ids

    async def test_a_start_with_an_existing_id_leaves_that_run_unchanged(self, store: Store) -> None:
        """SEMANTICS, starting: a start with an id that exists never touches the existing run."""
        await start(store, an_intent(1, payload='"old"'))
        before = await store.get(an_id(1))

        created = await store.create([an_intent(1, payload='"new"', type="other", key="k", priority=1)])

        assert [(run.run_id, run.created) for run in created.runs] == [(an_id(1), False)]
        assert await store.get(an_id(1)) == before
        assert await holder_of(store, "k") is None

    async def test_the_same_id_twice_in_one_call_creates_one_run(self, store: Store) -> None:
        """SEMANTICS, starting: this holds also for a run created in the same call."""
        created = await store.create([an_intent(1, payload='"first"'), an_intent(1, payload='"second"')])

        assert [run.created for run in created.runs] == [True, False]
        assert (await the_run(store)).payload == '"first"'

    # Keys

    async def test_the_same_key_and_payload_return_the_existing_run(self, store: Store) -> None:
        """S1: one key makes at most one run."""
        await start(store, an_intent(1, key="k", payload='{"a":1,"b":[2]}'))

        created = await store.create([an_intent(2, key="k", payload='{"b": [2], "a": 1}')])

        assert [(run.run_id, run.created) for run in created.runs] == [(an_id(1), False)]
        assert await store.get(an_id(2)) is None
        assert await holder_of(store, "k") == an_id(1)

    async def test_the_same_key_with_another_payload_or_type_is_a_conflict(self, store: Store) -> None:
        """S1, SEMANTICS: `KeyConflict` carries the id of the existing run."""
        await start(store, an_intent(1, key="k"))

        for stranger in (an_intent(2, key="k", payload='{"a":1}'), an_intent(2, key="k", type="other")):
            with pytest.raises(KeyConflict) as refusal:
                await store.create([stranger])
            assert (refusal.value.run_id, refusal.value.index) == (an_id(1), 0)

        assert await store.get(an_id(2)) is None

    async def test_a_conflict_names_its_index_and_nothing_of_the_call_is_created(self, store: Store) -> None:
        """SEMANTICS, starting: a call creates all of its runs or none."""
        await start(store, an_intent(1, key="k"))

        with pytest.raises(KeyConflict) as refusal:
            await store.create(
                [an_intent(2), an_intent(3, key="free"), an_intent(4, key="k", payload="1"), an_intent(5)]
            )

        assert refusal.value.index == 2
        assert [details.run.id for details in await store.list(Query())] == [an_id(1)]
        assert await holder_of(store, "free") is None

    async def test_the_same_key_twice_in_one_call_creates_one_run(self, store: Store) -> None:
        """SEMANTICS, starting: the same key twice in one call creates one run."""
        created = await store.create([an_intent(1, key="k"), an_intent(2), an_intent(3, key="k")])

        assert [(run.run_id, run.created) for run in created.runs] == [
            (an_id(1), True),
            (an_id(2), True),
            (an_id(1), False),
        ]
        assert await store.get(an_id(3)) is None

    async def test_a_key_twice_in_one_call_with_another_payload_is_a_conflict(self, store: Store) -> None:
        """S1: also within one call, which then creates nothing."""
        with pytest.raises(KeyConflict) as refusal:
            await store.create([an_intent(1, key="k"), an_intent(2, key="k", payload="1")])

        assert refusal.value.index == 1
        assert await store.list(Query()) == []

    async def test_an_ended_run_holds_its_key(self, store: Store) -> None:
        """SEMANTICS, starting: a finished run holds its key until it is pruned."""
        await ended(store, 1, key="k")

        created = await store.create([an_intent(2, key="k")])

        assert [(run.run_id, run.created) for run in created.runs] == [(an_id(1), False)]

    @pytest.mark.parametrize(
        ("end", "reuse", "holder"),
        [
            (RunState.SUCCEEDED, "after_end", 2),
            (RunState.FAILED, "after_end", 2),
            (RunState.CANCELLED, "after_end", 2),
            (RunState.SUCCEEDED, "after_failure", 1),
            (RunState.FAILED, "after_failure", 2),
            (RunState.CANCELLED, "after_failure", 2),
        ],
    )
    async def test_a_key_may_be_taken_over_after_the_end(
        self, store: Store, end: RunState, reuse: Reuse, holder: int
    ) -> None:
        """SEMANTICS, starting: `reuse` moves the key to the new run. The old run stays, without its key."""
        if end is RunState.CANCELLED:
            await start(store, an_intent(1, key="k"))
            await store.apply(Cancel(run_id=an_id(1), id="c"))
        else:
            await ended(store, 1, end, key="k")

        created = await store.create([an_intent(2, key="k", reuse=reuse)])

        assert [(run.run_id, run.created) for run in created.runs] == [(an_id(holder), holder == 2)]
        assert await holder_of(store, "k") == an_id(holder)
        assert (await the_run(store, 1)).key == ("k" if holder == 1 else None)

    async def test_a_live_run_keeps_its_key_even_if_a_start_may_reuse_it(self, store: Store) -> None:
        """S1: one key makes at most one live run."""
        await start(store, an_intent(1, key="k"))

        same = await store.create([an_intent(2, key="k", reuse="after_end")])
        with pytest.raises(KeyConflict):
            await store.create([an_intent(2, key="k", reuse="after_end", payload="1")])

        assert [(run.run_id, run.created) for run in same.runs] == [(an_id(1), False)]

    async def test_a_key_taken_over_may_be_used_twice_in_that_call(self, store: Store) -> None:
        """S1: with `reuse`, the first intent takes the key and the second one finds that run."""
        await ended(store, 1, key="k")

        created = await store.create(
            [an_intent(2, key="k", reuse="after_end"), an_intent(3, key="k", reuse="after_end")]
        )

        assert [(run.run_id, run.created) for run in created.runs] == [(an_id(2), True), (an_id(2), False)]

    async def test_keys_are_taken_literally(self, store: Store) -> None:
        """S1: no character of a key has a special meaning to the store."""
        keys = [*HOSTILE, "K", "k", "k "]
        await start(store, *(an_intent(number, key=key) for number, key in enumerate(keys)))

        assert [await holder_of(store, key) for key in keys] == [an_id(number) for number in range(len(keys))]
        assert [(await the_run(store, number)).key for number in range(len(keys))] == keys

    async def test_only_one_of_concurrent_starts_with_one_key_creates_a_run(self, store: Store) -> None:
        """S1: also under concurrency."""
        answers = await asyncio.gather(*(store.create([an_intent(number, key="k")]) for number in range(8)))

        created = [run for answer in answers for run in answer.runs]
        assert sum(run.created for run in created) == 1
        assert len({run.run_id for run in created}) == 1
        assert len(await store.list(Query())) == 1

    async def test_a_refused_start_does_not_affect_concurrent_starts(self, store: Store) -> None:
        """SEMANTICS, starting: callers may share a commit, but a refusal affects only its own caller."""
        await start(store, an_intent(1, key="k"))

        answers = await asyncio.gather(
            store.create([an_intent(2)]),
            store.create([an_intent(3, key="k", payload="1")]),
            store.create([an_intent(4)]),
            return_exceptions=True,
        )

        assert [isinstance(answer, KeyConflict) for answer in answers] == [False, True, False]
        assert await store.stats(CountRuns()) == {TYPE: {RunState.PENDING: 3}}

    # Leasing in the same commit

    async def test_a_run_that_is_ready_may_be_leased_to_its_creator(self, store: Store) -> None:
        """DESIGN, group commit: one commit may create a run and lease it."""
        (created,) = (await store.create([an_intent(1)], LEASE_REQUEST)).runs

        assert created.lease is not None
        run = created.lease.run
        assert run == await the_run(store)
        assert (run.state, run.worker, run.claim_id, run.token) == (RunState.RUNNING, WORKER, "claim-1", 1)
        assert (run.ready_at, run.first_claimed_at, run.python) == (START + LEASE, START, PYTHON)
        assert (created.lease.entries, created.lease.arrivals) == ((), ())
        assert await facts_of(store) == ["claimed"]
        assert await claimed_ids(store, worker="another") == []

    async def test_a_delayed_run_is_not_leased_to_its_creator(self, store: Store) -> None:
        """S7: the start time holds for the creator too."""
        (created,) = (await store.create([an_intent(1, delay=1)], LEASE_REQUEST)).runs

        assert (created.created, created.lease) == (True, None)
        assert (await the_run(store)).state is RunState.PENDING

    async def test_a_repeated_start_does_not_lease_an_existing_run(self, store: Store) -> None:
        """S4: two workers never share a run."""
        await start(store, an_intent(1, key="k"))
        await held(store, 2)
        before = [await the_run(store, 1), await the_run(store, 2)]

        created = await store.create([an_intent(3, key="k"), an_intent(2)], LEASE_REQUEST)

        assert [(run.created, run.lease) for run in created.runs] == [(False, None), (False, None)]
        assert [await the_run(store, 1), await the_run(store, 2)] == before

    async def test_a_repeated_claim_returns_the_lease_of_a_start_whose_answer_was_lost(self, store: Store) -> None:
        """S6: a lost answer is safe."""
        (created,) = (await store.create([an_intent(1)], LEASE_REQUEST)).runs

        (again,) = (await store.create([an_intent(1)], LEASE_REQUEST)).runs
        claimed = await claim(store, id="claim-1", is_repeat=True)

        assert (again.run_id, again.created, again.lease) == (an_id(1), False, None)
        assert claimed.leases == (created.lease,)

    # Values

    async def test_a_payload_comes_back_as_it_was_given(self, store: Store) -> None:
        """PROMISES: every store returns payloads unchanged."""
        payload = '{"text":"Ünïcödé ☃ 🦊 \\u2028 \\"quoted\\" \\\\ %s $1","big":12345678901234567890,"f":1.5e300}'
        tags = {name: name for name in HOSTILE}
        await start(store, an_intent(1, payload=payload, tags=tags))

        run = await the_run(store)
        assert (run.payload, run.tags) == (payload, tags)

    async def test_a_large_payload_comes_back_as_it_was_given(self, store: Store) -> None:
        """PROMISES: up to the limit of the codec, 2 MiB."""
        payload = f'"{"x" * (2 * 1024 * 1024 - 2)}"'
        await start(store, an_intent(1, payload=payload))

        (lease,) = (await claim(store)).leases
        assert lease.run.payload == payload
