"""Contract of the read side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.core.checkpoint import Release
from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import Cancel, Pause, Resume, SendMessages
from holdfast.core.model import Backlog
from holdfast.core.ports import Store
from holdfast.core.questions import CountLeases, CountReady, CountRuns, EndsOf, FindOrphans, Query
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import (
    HOSTILE,
    LEASE,
    OTHER_WORKER,
    TYPE,
    WORKER,
    a_message,
    an_id,
    an_intent,
    block,
    checkpoint_for,
    ended,
    fail,
    for_child,
    for_event,
    for_message,
    for_time,
    held,
    holder_of,
    start,
    succeed,
    suspended,
    write,
)
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock


async def _listed(store: Store, **filters: Any) -> list[int]:
    """Return the numbers of the runs that a query lists."""
    numbers = {an_id(number): number for number in range(100)}
    return [numbers[details.run.id] for details in await store.list(Query(**filters))]


class ReadContract(Contract):
    """The read side shows everything that was written."""

    async def test_a_second_store_on_another_event_loop_has_the_same_runs(self, store: Store) -> None:
        """The port: a second store serves another event loop in another thread at the same time."""
        await store.create([an_intent(1)])
        second = store.for_another_loop()

        async def elsewhere() -> list[int]:
            await second.open()
            try:
                await second.create([an_intent(2)])
                return sorted(await _listed(second))
            finally:
                await second.close()

        assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == [1, 2]
        assert sorted(await _listed(store)) == [1, 2]

    async def test_reading_an_unknown_run_returns_nothing(self, store: Store) -> None:
        """The port: a read of something unknown returns None or nothing, and never raises."""
        assert await store.get(an_id(1)) is None
        assert await holder_of(store, "k") is None
        assert list(await store.history(an_id(1))) == []
        assert list(await store.audit(an_id(1))) == []
        assert list(await store.list(Query())) == []
        assert list(await store.changes(EndsOf(run_ids=[an_id(1)]))) == []
        assert await store.stats(CountRuns()) == {}
        assert list(await store.stats(CountReady())) == []
        assert await store.stats(CountLeases()) == {}
        assert list(await store.workers()) == []
        assert list(await store.stats(FindOrphans(limit=10))) == []

    async def test_an_open_store_has_the_schema_it_needs(self, store: Store) -> None:
        """The port: an empty store gets its schema."""
        schema = store.schema()

        assert schema.current == schema.wanted

    async def test_opening_an_open_store_again_loses_nothing(self, store: Store) -> None:
        """S6: any operation may be repeated."""
        await start(store, an_intent(1))

        await store.open()

        assert await _listed(store) == [1]

    async def test_a_healthy_store_reports_no_error(self, store: Store) -> None:
        """The port: `check` returns findings about the store's own health."""
        findings = await store.check()

        assert {finding.level for finding in findings} <= {"ok", "warning"}
        assert all(finding.subject and finding.text for finding in findings)

    async def test_the_store_returns_the_time_of_its_clock(self, store: Store, clock: SettableClock) -> None:
        """S7: every store accepts a clock for tests."""
        before = await store.now()
        clock.advance(DAY)

        assert (before, await store.now()) == (START, START + DAY)

    # Lists

    async def test_a_list_is_newest_first_then_by_id(self, store: Store, clock: SettableClock) -> None:
        """The port: newest first."""
        await start(store, an_intent(5), an_intent(1))
        clock.advance(1)
        await start(store, an_intent(3), an_intent(2))

        assert await _listed(store) == [3, 2, 5, 1]

    async def test_a_listed_run_comes_with_its_waits_and_values(self, store: Store) -> None:
        """The port: `list` returns the same details as `get`."""
        lease = await held(store, 1)
        waits = (for_message("go"), for_time(START + LEASE))
        await write(store, checkpoint_for(lease, waits=waits, values={"done": "1"}))
        await start(store, an_intent(2))

        listed = await store.list(Query())

        assert listed == [await store.get(an_id(2)), await store.get(an_id(1))]

    async def test_pages_continue_where_the_last_one_ended(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, seeing: keyset paging, also among runs created at the same instant."""
        await start(store, *(an_intent(number) for number in range(4)))
        clock.advance(1)
        await start(store, *(an_intent(number) for number in range(4, 7)))

        pages: list[list[int]] = []
        before = None
        while page := await store.list(Query(limit=2, before=before)):
            pages.append(await _listed(store, limit=2, before=before))
            before = (page[-1].run.created_at, page[-1].run.id)

        assert pages == [[6, 5], [4, 3], [2, 1], [0]]

    async def test_runs_are_listed_by_state(self, store: Store) -> None:
        """SEMANTICS, seeing: list by state, one or several."""
        await start(store, an_intent(1))
        await held(store, 2)
        await ended(store, 3)
        await ended(store, 4, RunState.FAILED)

        assert await _listed(store, states=frozenset({RunState.RUNNING})) == [2]
        assert await _listed(store, states=frozenset({RunState.FAILED, RunState.PENDING})) == [4, 1]
        assert await _listed(store, states=frozenset({RunState.CANCELLED})) == []

    async def test_runs_are_listed_by_type_or_dotted_prefix(self, store: Store) -> None:
        """SEMANTICS, seeing and workers: in `billing.*` the prefix is literal, so no SQL wildcard leaks."""
        types = [
            "shop",
            "shop.order",
            "shop.order.v1",
            "shop.orders",
            "shops.order",
            "Shop.order",
            "shop_order",
            "sho%",
        ]
        await start(store, *(an_intent(number, type=type) for number, type in enumerate(types)))

        assert await _listed(store, type="shop.*") == [3, 2, 1]
        assert await _listed(store, type="shop.order.*") == [2]
        assert await _listed(store, type="shop.order") == [1]
        assert await _listed(store, type="shop") == [0]
        assert [await _listed(store, type=type) for type in ("sho%", "shop_*", "*", "sh*", "%.*")] == [
            [7],
            [],
            [],
            [],
            [],
        ]

    async def test_type_prefixes_are_taken_literally(self, store: Store) -> None:
        """SEMANTICS, workers: every character of a prefix is literal."""
        await start(store, *(an_intent(number, type=f"{text}.v1") for number, text in enumerate(HOSTILE)))

        assert [await _listed(store, type=f"{text}.*") for text in HOSTILE] == [[n] for n in range(len(HOSTILE))]

    async def test_runs_are_listed_by_key(self, store: Store) -> None:
        """SEMANTICS, seeing: list by key."""
        await start(store, *(an_intent(number, key=key) for number, key in enumerate(HOSTILE)), an_intent(99))

        assert [await _listed(store, key=key) for key in HOSTILE] == [[number] for number in range(len(HOSTILE))]
        assert await _listed(store, key="%") == []

    async def test_a_list_by_tags_requires_all_of_them(self, store: Store) -> None:
        """SEMANTICS, starting: tags are a map of strings, searchable."""
        await start(
            store,
            an_intent(1, tags={"shop": "x", "zone": "eu"}),
            an_intent(2, tags={"shop": "x"}),
            an_intent(3, tags={"shop": "y", "zone": "eu"}),
            an_intent(4),
        )

        assert await _listed(store, tags={"shop": "x"}) == [2, 1]
        assert await _listed(store, tags={"shop": "x", "zone": "eu"}) == [1]
        assert await _listed(store, tags={"shop": ""}) == []

    async def test_tags_are_taken_literally(self, store: Store) -> None:
        """SEMANTICS, starting: no character of a tag has a special meaning to the store."""
        await start(store, *(an_intent(number, tags={text: f"{text}!"}) for number, text in enumerate(HOSTILE)))

        assert [await _listed(store, tags={text: f"{text}!"}) for text in HOSTILE] == [[n] for n in range(len(HOSTILE))]

    async def test_runs_are_listed_by_parent(self, store: Store) -> None:
        """SEMANTICS, seeing: list by parent."""
        await start(store, an_intent(1), an_intent(2, parent_id=an_id(1)), an_intent(3, parent_id=an_id(2)))

        assert await _listed(store, parent_id=an_id(1)) == [2]
        assert await _listed(store, parent_id=an_id(9)) == []

    async def test_runs_are_listed_by_id_prefix(self, store: Store) -> None:
        """The port: `id_prefix`, for people who copy only a part of an id."""
        await start(store, an_intent(1), an_intent(2))

        assert await _listed(store, id_prefix=an_id(1)[:-3]) == [1]
        assert await _listed(store, id_prefix=an_id(2)) == [2]
        assert await _listed(store, id_prefix=an_id(1)[:4]) == [2, 1]
        assert [await _listed(store, id_prefix=prefix) for prefix in ("%", "_", "zz")] == [[], [], []]

    async def test_runs_are_listed_by_time_of_creation(self, store: Store, clock: SettableClock) -> None:
        """The port: `created_from` is inclusive, `created_until` is exclusive."""
        for number in (1, 2, 3):
            await start(store, an_intent(number))
            clock.advance(SECOND)

        assert await _listed(store, created_from=START + SECOND) == [3, 2]
        assert await _listed(store, created_until=START + SECOND) == [1]
        assert await _listed(store, created_from=START + SECOND, created_until=START + 2 * SECOND) == [2]

    async def test_filters_apply_on_every_page(self, store: Store) -> None:
        """The port: every filter applies on every page."""
        await start(
            store,
            *(an_intent(number, type=("a.x" if number % 2 else "b.x"), tags={"t": "1"}) for number in range(8)),
        )
        await store.apply(Cancel(run_id=an_id(5), id="c"))
        states = frozenset({RunState.PENDING})

        first = await _listed(store, type="a.*", tags={"t": "1"}, states=states, limit=2)
        rest = await _listed(store, type="a.*", tags={"t": "1"}, states=states, limit=2, before=(START, an_id(3)))

        assert (first, rest) == ([7, 3], [1])

    # Ends, counts, orphans

    async def test_ends_are_returned_only_for_runs_that_have_ended(self, store: Store) -> None:
        """The port: `EndsOf` serves many callers of `result()` at once."""
        await start(store, an_intent(1), an_intent(2))
        await ended(store, 3)
        await write(store, checkpoint_for(await held(store, 4), fail()))
        await store.apply(Cancel(run_id=an_id(2), id="c"))

        runs = await store.changes(EndsOf(run_ids=[an_id(number) for number in (4, 1, 2, 9, 3)]))

        assert {run.id: run.state for run in runs} == {
            an_id(2): RunState.CANCELLED,
            an_id(3): RunState.SUCCEEDED,
            an_id(4): RunState.FAILED,
        }
        assert {run.result for run in runs} == {None, '"done"'}
        assert list(await store.changes(EndsOf(run_ids=[]))) == []

    async def test_runs_are_counted_by_type_and_state(self, store: Store) -> None:
        """The port: `CountRuns`."""
        await start(store, an_intent(1), an_intent(2), an_intent(3, type="other's"))
        await ended(store, 4)

        assert await store.stats(CountRuns()) == {
            TYPE: {RunState.PENDING: 2, RunState.SUCCEEDED: 1},
            "other's": {RunState.PENDING: 1},
        }

    async def test_the_backlog_counts_runs_that_may_be_claimed_now(self, store: Store, clock: SettableClock) -> None:
        """T5: a run counts from its `ready_at` on. Sleeping, waiting, held, paused and ended runs do not count."""
        await start(store, an_intent(1, priority=9), an_intent(2, delay=2 * SECOND), an_intent(3, type="other's"))
        await ended(store, 4)
        await suspended(store, 5, for_message("go"))
        await suspended(store, 6, for_time(START + SECOND))
        await held(store, 7)
        await store.apply(Pause(run_id=an_id(3), id="p"))

        assert list(await store.stats(CountReady())) == [Backlog(type=TYPE, count=1, since=START)]
        clock.advance(2 * SECOND)
        await store.apply(SendMessages(messages=[a_message(5)]))
        assert list(await store.stats(CountReady())) == [Backlog(type=TYPE, count=4, since=START)]
        await store.apply(Resume(run_id=an_id(3), id="r"))
        await store.apply(Cancel(run_id=an_id(1), id="c"))
        assert list(await store.stats(CountReady())) == [
            Backlog(type=TYPE, count=3, since=START + SECOND),
            Backlog(type="other's", count=1, since=START + 2 * SECOND),
        ]

    async def test_a_run_with_an_expired_lease_counts_in_the_backlog(self, store: Store, clock: SettableClock) -> None:
        """T5: `ready_at` of a held run is the end of its lease. S7: the run counts from that instant on, not before."""
        await held(store, 1)
        await held(store, 2, worker=OTHER_WORKER)
        await start(store, an_intent(3, delay=DAY))

        clock.advance(LEASE - 1)
        assert list(await store.stats(CountReady())) == []
        clock.advance(1)
        assert list(await store.stats(CountReady())) == [Backlog(type=TYPE, count=2, since=START + LEASE)]

    async def test_held_runs_are_counted_by_their_holder(self, store: Store, clock: SettableClock) -> None:
        """The port: `CountLeases`. Expiry alone ends nothing: until another worker claims the run, it is held."""
        await held(store, 1)
        await held(store, 2, type="other's")
        await held(store, 3, worker=OTHER_WORKER)
        await ended(store, 4)
        await start(store, an_intent(5))
        clock.advance(LEASE)

        assert await store.stats(CountLeases()) == {WORKER: 2, OTHER_WORKER: 1}

    async def test_no_regular_state_of_a_run_is_an_orphan(self, store: Store) -> None:
        """PROMISES 8: each live run is claimed, ready, or waiting for something named."""
        await start(store, an_intent(1), an_intent(2, delay=DAY))
        await held(store, 3)
        await suspended(store, 4, for_message("go"))
        await suspended(store, 5, for_time(START + DAY))
        await suspended(store, 6, for_event("paid"))
        await suspended(store, 7, for_child(8))
        await write(store, checkpoint_for(await held(store, 8), block()))
        await write(store, checkpoint_for(await held(store, 9), block(retry_at=START + DAY)))
        await write(store, checkpoint_for(await held(store, 10), Release()))
        await write(store, checkpoint_for(await held(store, 11), succeed()))
        await store.apply(Cancel(run_id=an_id(1), id="c"))

        assert list(await store.stats(FindOrphans(limit=100))) == []

    @pytest.mark.parametrize("count", [1, 2])
    async def test_a_run_suspended_without_a_wait_is_an_orphan(self, store: Store, count: int) -> None:
        """PROMISES 8: `holdfast doctor` uses the same query. Only a bug creates an orphan."""
        for number in (1, 2):
            await suspended(store, number)

        assert len(await store.stats(FindOrphans(limit=count))) == count
