"""Contract of schedules: each slot makes one run, regardless of how many schedulers fire it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import schedules as rules
from holdfast.core.clock import DAY, SECOND, Micros
from holdfast.core.commands import (
    Cancel,
    Fired,
    FireSchedules,
    PauseSchedules,
    PutSchedules,
    RemoveSchedules,
    TriggerSchedule,
)
from holdfast.core.model import Firing, Run, RunOptions, Schedule
from holdfast.core.news import Hint
from holdfast.core.ports import Store
from holdfast.core.questions import Due, ListDueSchedules, ListSchedules, Query
from holdfast.core.states import RunState
from holdfast.testing.contract.arrange import HOSTILE, TYPE, an_id, an_intent, claim_one, start
from holdfast.testing.contract.base import Contract
from holdfast.testing.contract.clock import START, SettableClock
from holdfast.testing.patience import until

MINUTE: Micros = 60 * SECOND
HOUR: Micros = 60 * MINUTE


def a_schedule(name: str = "hourly", **fields: Any) -> Schedule:
    if "cron" not in fields:
        fields = {"every": HOUR, **fields}
    return Schedule(**{"name": name, "type": TYPE, "payload": "{}", **fields})


async def put(store: Store, *schedules: Schedule) -> Schedule:
    return (await store.apply(PutSchedules(schedules=schedules)))[-1]


async def the_schedule(store: Store, name: str = "hourly") -> Schedule:
    (found,) = await store.catalog(ListSchedules(name=name))
    return found


async def due(store: Store, limit: int = 100) -> list[Firing]:
    """Return the firings of all due schedules, as a scheduler computes them."""
    found = await store.catalog(ListDueSchedules(limit=limit))
    return [rules.firing(schedule, found.now) for schedule in found.schedules]


async def fire_due(store: Store) -> list[Fired]:
    return list(await store.apply(FireSchedules(firings=await due(store))))


async def the_run_of(store: Store, run_id: str) -> Run:
    details = await store.get(run_id)
    assert details is not None
    return details.run


async def runs_of(store: Store, name: str = "hourly") -> list[str]:
    return sorted(details.run.id for details in await store.list(Query(tags={"schedule": name})))


class ScheduleContract(Contract):
    """A schedule makes one run per slot."""

    # Setting

    async def test_a_schedule_is_stored_unchanged(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, workers: the store's clock sets its times."""
        wanted = Schedule(
            name="it's %",
            type=TYPE,
            payload='{"a":[1,2]}',
            cron="0 9 * * mon-fri",
            zone="Europe/Rome",
            catch_up="all",
            overlap="skip",
            jitter=5 * SECOND,
            priority=3,
            tags={"it's": "%"},
            options=RunOptions(max_run=HOUR),
            is_declared=True,
        )

        told = await put(store, wanted)

        now = clock.now()
        assert told == replace(wanted, created_at=now, updated_at=now, anchor=now, next_at=rules.next_slot(wanted, now))
        assert await the_schedule(store, "it's %") == told

    @pytest.mark.parametrize("text", HOSTILE)
    async def test_a_schedule_accepts_any_text(self, store: Store, text: str) -> None:
        told = await put(store, a_schedule(text, tags={text: text}, payload='{"a":"☃ \\u0000"}'))

        assert await the_schedule(store, text) == told

    async def test_an_interval_counts_from_when_it_was_set(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, workers: slots do not depend on when a scheduler looks."""
        clock.advance(7)

        told = await put(store, a_schedule(every=HOUR))

        assert told.next_at == START + 7 + HOUR

    async def test_setting_an_unchanged_schedule_changes_nothing(self, store: Store, clock: SettableClock) -> None:
        """S6: an unchanged deploy neither moves the next slot nor resumes a paused schedule."""
        await put(store, a_schedule(payload='{"a":1,"b":2}'), a_schedule("paused"))
        await store.apply(PauseSchedules(names=["paused"], is_paused=True))
        before = [await the_schedule(store), await the_schedule(store, "paused")]
        clock.advance(HOUR // 2)

        told = await store.apply(PutSchedules(schedules=[a_schedule(payload='{"b": 2, "a": 1}'), a_schedule("paused")]))

        assert list(told) == before
        assert [await the_schedule(store), await the_schedule(store, "paused")] == before

    async def test_a_changed_rule_begins_with_its_own_next_slot(self, store: Store, clock: SettableClock) -> None:
        await put(store, a_schedule(every=HOUR))
        clock.advance(MINUTE)

        told = await put(store, a_schedule(every=2 * HOUR))

        assert (told.created_at, told.updated_at) == (START, START + MINUTE)
        assert told.next_at == START + MINUTE + 2 * HOUR

    async def test_changing_anything_but_the_rule_moves_no_slot(self, store: Store, clock: SettableClock) -> None:
        await put(store, a_schedule())
        clock.advance(MINUTE)

        told = await put(store, a_schedule(payload='{"a":1}', type="other", priority=1))

        assert (told.next_at, told.payload, told.type) == (START + HOUR, '{"a":1}', "other")

    async def test_a_paused_schedule_stays_paused_when_its_rule_is_changed(self, store: Store) -> None:
        await put(store, a_schedule())
        await store.apply(PauseSchedules(names=["hourly"], is_paused=True))

        told = await put(store, a_schedule(every=2 * HOUR))

        assert (told.is_paused, told.next_at, told.every) == (True, None, 2 * HOUR)

    async def test_the_last_of_several_schedules_with_one_name_counts(self, store: Store) -> None:
        told = await store.apply(PutSchedules(schedules=[a_schedule(priority=1), a_schedule(priority=2)]))

        assert [schedule.priority for schedule in told] == [2, 2]

    async def test_schedules_are_listed_by_name(self, store: Store) -> None:
        names = ["b", "a", "ä", "B", "a.b"]
        await put(store, *(a_schedule(name) for name in names))

        first = await store.catalog(ListSchedules(limit=2))
        rest = await store.catalog(ListSchedules(after=first[-1].name))

        assert [schedule.name for schedule in (*first, *rest)] == ["B", "a", "a.b", "b", "ä"]

    async def test_schedules_are_found_by_type(self, store: Store) -> None:
        types = {"a": "shop", "b": "shop.order", "c": "shopping", "d": "shop.%"}
        await put(store, *(a_schedule(name, type=type) for name, type in types.items()))

        async def found(**query: Any) -> list[str]:
            return [schedule.name for schedule in await store.catalog(ListSchedules(**query))]

        assert await found(type="shop") == ["a"]
        assert await found(type="shop.*") == ["b", "d"]
        assert await found(type="shop.*", limit=1, after="b") == ["d"]
        assert await found(type="%") == []
        assert await found(name="nobody") == []

    # Due

    async def test_a_schedule_is_due_when_its_slot_has_come_and_not_before(
        self, store: Store, clock: SettableClock
    ) -> None:
        """S7: by the store's clock. The answer also says when the next slot comes."""
        await put(store, a_schedule(), a_schedule("later", every=2 * HOUR))
        clock.advance(HOUR - 1)
        early = await store.catalog(ListDueSchedules(limit=10))
        clock.advance(1)
        late = await store.catalog(ListDueSchedules(limit=10))

        assert early == Due(schedules=(), next_at=START + HOUR, now=START + HOUR - 1)
        assert late == Due(schedules=(await the_schedule(store),), next_at=START + 2 * HOUR, now=START + HOUR)

    async def test_due_schedules_come_in_pages_the_earliest_first(self, store: Store, clock: SettableClock) -> None:
        await put(
            store, *(a_schedule(name, every=every * HOUR) for name, every in zip("dacb", [1, 2, 2, 3], strict=True))
        )
        clock.advance(2 * HOUR)

        first = await store.catalog(ListDueSchedules(limit=2))
        last = first.schedules[-1]
        assert last.next_at is not None
        second = await store.catalog(ListDueSchedules(limit=2, after=(last.next_at, last.name)))

        assert [schedule.name for schedule in first.schedules] == ["d", "a"]
        assert [schedule.name for schedule in second.schedules] == ["c"]
        assert first.next_at == second.next_at == START + 3 * HOUR

    async def test_without_schedules_nothing_is_due(self, store: Store) -> None:
        assert await store.catalog(ListDueSchedules(limit=10)) == Due(schedules=(), next_at=None, now=START)

    # Firing

    async def test_a_slot_becomes_a_run(self, store: Store, clock: SettableClock) -> None:
        """SEMANTICS, workers: the run has the payload, priority, tags and options of its schedule."""
        await put(store, a_schedule(payload='{"a":1}', priority=7, tags={"a": "b"}, options=RunOptions(max_run=DAY)))
        clock.advance(HOUR + 3)

        (fired,) = await fire_due(store)

        (run_id,) = fired.run_ids
        run = await the_run_of(store, run_id)
        assert (run.type, run.payload, run.priority, run.options) == (TYPE, '{"a":1}', 7, RunOptions(max_run=DAY))
        assert run.tags == {"a": "b", "schedule": "hourly", "slot": rules.slot_text(START + HOUR)}
        assert (run.state, run.ready_at, run.created_at) == (RunState.PENDING, START + HOUR + 3, START + HOUR + 3)
        assert (await claim_one(store)).run.id == run_id
        schedule = await the_schedule(store)
        assert (schedule.last_slot, schedule.last_run_id) == (START + HOUR, run_id)
        assert schedule.next_at == START + 2 * HOUR

    async def test_firing_a_slot_again_makes_no_second_run(self, store: Store, clock: SettableClock) -> None:
        """S6: a second scheduler, or a repeat after a lost answer, makes no second run."""
        await put(store, a_schedule())
        clock.advance(HOUR)
        found = await due(store)
        await store.apply(FireSchedules(firings=found))

        again = await store.apply(FireSchedules(firings=found))

        assert list(again) == [Fired(is_stale=True)]
        assert len(await runs_of(store)) == 1

    async def test_only_one_of_several_schedulers_makes_the_run(self, store: Store, clock: SettableClock) -> None:
        await put(store, *(a_schedule(f"s{number}") for number in range(5)))
        clock.advance(HOUR)
        found = await due(store)

        answers = await asyncio.gather(*(store.apply(FireSchedules(firings=found)) for _ in range(6)))

        made = [run_id for answer in answers for fired in answer for run_id in fired.run_ids]
        assert sorted(made) == sorted(set(made))
        assert len(made) == 5
        assert len(await store.list(Query(type=TYPE))) == 5

    @pytest.mark.parametrize("change", ["removed", "paused", "set"])
    async def test_a_schedule_that_was_changed_meanwhile_is_not_fired(
        self, store: Store, clock: SettableClock, change: str
    ) -> None:
        await put(store, a_schedule())
        clock.advance(HOUR)
        found = await due(store)
        if change == "removed":
            await store.apply(RemoveSchedules(names=["hourly"]))
        elif change == "paused":
            await store.apply(PauseSchedules(names=["hourly"], is_paused=True))
        else:
            await put(store, a_schedule(payload='{"a":1}'))

        assert list(await store.apply(FireSchedules(firings=found))) == [Fired(is_stale=True)]
        assert await runs_of(store) == []

    async def test_a_stale_firing_does_not_affect_the_others(self, store: Store, clock: SettableClock) -> None:
        await put(store, a_schedule("a"), a_schedule("b"), a_schedule("c"))
        clock.advance(HOUR)
        found = await due(store)
        await store.apply(RemoveSchedules(names=["b"]))

        told = await store.apply(FireSchedules(firings=[*found, found[0]]))

        assert [fired.is_stale for fired in told] == [False, True, False, True]
        assert len(await store.list(Query(type=TYPE))) == 2

    async def test_a_schedule_removed_and_set_again_makes_no_second_run_of_a_slot(
        self, store: Store, clock: SettableClock
    ) -> None:
        """PROMISES: the id of a run is derived from schedule and slot."""
        hourly = a_schedule(cron="0 * * * *")
        await put(store, hourly)
        clock.advance(HOUR)
        (first,) = await fire_due(store)
        await store.apply(RemoveSchedules(names=["hourly"]))
        again = await put(store, hourly)
        firing = Firing(schedule=again, slots=(START + HOUR,), next_at=again.next_at)

        (second,) = await store.apply(FireSchedules(firings=[firing]))

        assert second.run_ids == first.run_ids
        assert len(await runs_of(store)) == 1

    async def test_a_run_starts_later_than_its_slot_by_its_jitter(self, store: Store, clock: SettableClock) -> None:
        """Never earlier, and the same for every scheduler."""
        schedule = await put(store, a_schedule(jitter=MINUTE))
        clock.advance(HOUR)

        (fired,) = await fire_due(store)

        run = await the_run_of(store, fired.run_ids[0])
        assert run.start_at == START + HOUR + rules.jitter_of(schedule, START + HOUR)
        assert START + HOUR < run.start_at < START + HOUR + MINUTE

    # Missed slots

    @pytest.mark.parametrize(
        ("catch_up", "late", "expected"),
        [
            ("one", MINUTE, [3]),
            ("skip", MINUTE, [3]),  # within the grace, no slot counts as missed
            ("skip", MINUTE + 1, []),
            ("all", MINUTE + 1, [1, 2, 3]),
        ],
    )
    async def test_missed_slots_are_caught_up_as_the_schedule_says(
        self, store: Store, clock: SettableClock, catch_up: Any, late: Micros, expected: list[int]
    ) -> None:
        await put(store, a_schedule(catch_up=catch_up))
        clock.advance(3 * HOUR + late)

        await fire_due(store)

        runs = [await the_run_of(store, run_id) for run_id in await runs_of(store)]
        assert [run.tags["slot"] for run in runs] == [rules.slot_text(START + hour * HOUR) for hour in expected]
        assert (await the_schedule(store)).next_at == START + 4 * HOUR

    # Overlap

    async def test_a_slot_is_skipped_while_an_earlier_run_has_not_ended(
        self, store: Store, clock: SettableClock
    ) -> None:
        """SEMANTICS, workers: overlap `skip`. The schedule counts the slots that it skipped."""
        await put(store, a_schedule(overlap="skip"))
        clock.advance(HOUR)
        (first,) = await fire_due(store)
        clock.advance(HOUR)

        (second,) = await fire_due(store)
        between = await the_schedule(store)
        await store.apply(Cancel(run_id=first.run_ids[0], id="c"))
        clock.advance(HOUR)
        (third,) = await fire_due(store)

        assert second == Fired(skipped=(START + 2 * HOUR,))
        assert (between.skipped, between.last_skipped_slot) == (1, START + 2 * HOUR)
        assert (between.last_slot, between.last_run_id) == (START + HOUR, first.run_ids[0])
        assert between.next_at == START + 3 * HOUR
        assert len(third.run_ids) == 1

    async def test_a_triggered_run_counts_as_an_overlap_too(self, store: Store, clock: SettableClock) -> None:
        """While the run of a slot or a triggered run is alive, no slot is fired."""
        await put(store, a_schedule(overlap="skip"))
        clock.advance(HOUR)
        (first,) = await fire_due(store)
        await store.apply(TriggerSchedule(name="hourly", run_id=an_id(1)))
        skipped = []
        for ended in (an_id(1), first.run_ids[0]):
            clock.advance(HOUR)
            (fired,) = await fire_due(store)
            skipped.append(len(fired.skipped))
            await store.apply(Cancel(run_id=ended, id="c"))
        clock.advance(HOUR)
        (last,) = await fire_due(store)

        assert skipped == [1, 1]
        assert len(last.run_ids) == 1

    async def test_catching_up_without_overlap_runs_only_the_first_missed_slot(
        self, store: Store, clock: SettableClock
    ) -> None:
        await put(store, a_schedule(overlap="skip", catch_up="all"))
        clock.advance(3 * HOUR)

        (fired,) = await fire_due(store)

        assert (len(fired.run_ids), len(fired.skipped)) == (1, 2)

    async def test_a_schedule_changed_to_skip_overlaps_counts_its_last_run(
        self, store: Store, clock: SettableClock
    ) -> None:
        await put(store, a_schedule())
        clock.advance(HOUR)
        await fire_due(store)
        await put(store, a_schedule(overlap="skip"))
        clock.advance(HOUR)

        (fired,) = await fire_due(store)

        assert len(fired.skipped) == 1

    # By hand

    async def test_a_paused_schedule_is_never_due(self, store: Store, clock: SettableClock) -> None:
        await put(store, a_schedule())

        changed = await store.apply(PauseSchedules(names=["hourly", "nobody"], is_paused=True))
        clock.advance(HOUR)

        assert list(changed) == [True, False]
        assert await store.catalog(ListDueSchedules(limit=10)) == Due(schedules=(), next_at=None, now=START + HOUR)
        assert list(await store.apply(PauseSchedules(names=["hourly"], is_paused=True))) == [False]

    async def test_a_resumed_schedule_goes_on_with_the_next_slot(self, store: Store, clock: SettableClock) -> None:
        """Slots during the pause are not caught up, because a person paused the schedule."""
        await put(store, a_schedule(catch_up="all"))
        await store.apply(PauseSchedules(names=["hourly"], is_paused=True))
        clock.advance(3 * HOUR + 1)

        changed = await store.apply(PauseSchedules(names=["hourly", "nobody"], is_paused=False))

        assert list(changed) == [True, False]
        assert (await the_schedule(store)).next_at == START + 4 * HOUR
        assert list(await store.apply(PauseSchedules(names=["hourly"], is_paused=False))) == [False]

    async def test_a_schedule_is_triggered_once_per_run_id(self, store: Store, clock: SettableClock) -> None:
        """S6: the caller gives the run id, so a repeat makes no second run. A trigger moves no slot."""
        await put(store, a_schedule(payload='{"a":1}', tags={"a": "b"}, jitter=HOUR))
        await store.apply(PauseSchedules(names=["hourly"], is_paused=True))
        clock.advance(1)

        told = [await store.apply(TriggerSchedule(name="hourly", run_id=an_id(1))) for _ in range(2)]
        other = await store.apply(TriggerSchedule(name="nobody", run_id=an_id(2)))

        run = await the_run_of(store, an_id(1))
        assert (told, other) == ([True, True], False)
        assert (run.payload, run.tags) == ('{"a":1}', {"a": "b", "schedule": "hourly"})
        assert run.ready_at == START + 1
        assert await runs_of(store) == [an_id(1)]
        schedule = await the_schedule(store)
        assert (schedule.last_run_id, schedule.last_slot, schedule.next_at) == (an_id(1), None, None)

    async def test_a_repeated_trigger_does_not_change_the_last_run(self, store: Store) -> None:
        await put(store, a_schedule())
        for number in (1, 2, 1):
            await store.apply(TriggerSchedule(name="hourly", run_id=an_id(number)))

        assert (await the_schedule(store)).last_run_id == an_id(2)

    async def test_removing_a_schedule_keeps_its_runs(self, store: Store, clock: SettableClock) -> None:
        await put(store, a_schedule())
        clock.advance(HOUR)
        await fire_due(store)

        removed = await store.apply(RemoveSchedules(names=["hourly", "nobody"]))

        assert list(removed) == [True, False]
        assert list(await store.catalog(ListSchedules())) == []
        assert len(await runs_of(store)) == 1

    # Hints

    async def test_a_new_or_changed_schedule_sends_a_hint(self, store: Store, clock: SettableClock) -> None:
        """There are hints of new runs too, but none of a schedule that did not change."""
        hints: list[Hint] = []
        unrelated = itertools.count(90)
        leave = store.listen(hints.append)

        async def told() -> list[Hint]:
            """Return the hints up to the end of an unrelated run: hints arrive in order."""
            number = next(unrelated)
            marker = an_id(number)
            await start(store, an_intent(number, type="unrelated"))
            await store.apply(Cancel(run_id=marker, id="c"))
            await until(
                "a hint names the end of the unrelated run", lambda: any(marker in hint.ended for hint in hints)
            )
            heard = [replace(hint, is_elsewhere=False) for hint in hints if hint != Hint(is_elsewhere=True)]
            hints.clear()
            return [hint for hint in heard if "unrelated" not in hint.ready and marker not in hint.ended]

        try:
            await put(store, a_schedule())
            assert [hint.is_rescheduled for hint in await told()] == [True]
            await put(store, a_schedule())
            assert await told() == []
            await store.apply(PauseSchedules(names=["hourly"], is_paused=True))
            await store.apply(PauseSchedules(names=["hourly"], is_paused=False))
            assert [hint.is_rescheduled for hint in await told()] == [True, True]
            clock.advance(2 * HOUR)
            await fire_due(store)
            assert [hint.ready for hint in await told()] == [frozenset({TYPE})]
        finally:
            leave()

    async def test_an_existing_run_with_the_id_of_a_slot_is_left_unchanged(
        self, store: Store, clock: SettableClock
    ) -> None:
        schedule = await put(store, a_schedule())
        await start(store, replace(an_intent(1, payload='"mine"'), id=schedule.run_id_of(START + HOUR)))
        clock.advance(HOUR)

        (fired,) = await fire_due(store)

        assert (await the_run_of(store, fired.run_ids[0])).payload == '"mine"'
