"""A machine that applies the same calls to the schedules of two stores and compares their answers and contents.

The memory store is the model. It is separate from the other machine, because schedules affect only the runs they
create.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import initialize, invariant, rule

from holdfast.core.clock import DAY, SECOND, Micros
from holdfast.core.commands import Cancel, FireSchedules, PauseSchedules, PutSchedules, RemoveSchedules, TriggerSchedule
from holdfast.core.model import Firing, RunOptions, Schedule
from holdfast.core.ports import Store
from holdfast.core.questions import Due, ListDueSchedules, ListSchedules, Query
from holdfast.core.schedules import firing
from tests.contract.side_by_side import Open, SideBySide

NAMES = ("it's %", "nightly", "Ünï")
RULES: tuple[dict[str, Any], ...] = (
    {"every": SECOND},
    {"every": SECOND, "overlap": "skip"},
    {"every": DAY, "overlap": "skip", "catch_up": "all", "tags": {"it's": "%"}},
    {"every": DAY, "payload": '{"a":1}', "catch_up": "all", "options": RunOptions(max_run=DAY)},
    {"cron": "0 9 * * mon-fri", "zone": "Europe/Rome", "catch_up": "skip", "jitter": SECOND},
    {"cron": "0 9 * * mon-fri", "zone": "America/New_York", "type": "shop.order", "priority": 0},
)
SCHEDULES = tuple(
    Schedule(**{"name": name, "type": "shop", "payload": "{}"} | rule) for name in NAMES for rule in RULES
)
SOME = st.lists(st.sampled_from(SCHEDULES), min_size=1, max_size=3)
SOME_NAMES = st.lists(st.sampled_from([*NAMES, "nobody"]), min_size=1, max_size=3)
LENGTHS: tuple[Micros, ...] = (1, SECOND, 30 * SECOND, DAY // 24, DAY, 3 * DAY)
QUERIES = st.sampled_from(
    [
        ListSchedules(),
        ListSchedules(limit=1),
        ListSchedules(after="it's %", limit=2),
        ListSchedules(name="nightly"),
        ListSchedules(name="nobody"),
        ListSchedules(type="shop"),
        ListSchedules(type="shop.*"),
        ListSchedules(type="%"),
    ]
)
SLOTS = 3
MANY = 1_000


class ScheduleMachine(SideBySide):
    """Drives the model and another store side by side."""

    def __init__(self, open_other: Open) -> None:
        super().__init__(open_other)
        self.seen: list[Due] = []

    @initialize(schedules=SOME)
    def begin(self, schedules: list[Schedule]) -> None:
        self.put(schedules)

    @rule(schedules=SOME)
    def put(self, schedules: list[Schedule]) -> None:
        self._both(lambda store: store.apply(PutSchedules(schedules=schedules)))

    @rule(names=SOME_NAMES, kind=st.sampled_from(["pause", "resume", "resume", "remove"]))
    def change(self, names: list[str], kind: str) -> None:
        if kind == "remove":
            self._both(lambda store: store.apply(RemoveSchedules(names=names)))
        else:
            self._both(lambda store: store.apply(PauseSchedules(names=names, is_paused=kind == "pause")))

    @rule(name=st.sampled_from([*NAMES, "nobody"]), number=st.integers(0, 3))
    def trigger(self, name: str, number: int) -> None:
        self._both(lambda store: store.apply(TriggerSchedule(name=name, run_id=f"trigger-{number}")))

    @rule(length=st.sampled_from(LENGTHS), limit=st.integers(1, 3), age=st.sampled_from([0, 0, 0, 1, 2]))
    def fire(self, length: Micros, limit: int, age: int) -> None:
        """Fire due slots, or slots of a while ago, as a slow scheduler would."""
        self.clock.advance(length)
        self.seen.append(self._both(lambda store: store.catalog(ListDueSchedules(limit=limit))))
        found = self.seen[-1 - age :][0]
        firings: list[Firing] = [firing(one, found.now, SLOTS) for one in found.schedules]
        self._both(lambda store: store.apply(FireSchedules(firings=firings)))

    @rule(number=st.integers(0, 3))
    def end(self, number: int) -> None:
        """End one of the latest runs."""
        made = [*self.model._state.records]
        for run_id in made[-1 - number :][:1]:
            self._end(run_id)

    def _end(self, run_id: str) -> None:
        self._both(lambda store: store.apply(Cancel(run_id=run_id, id="c")))

    @rule(query=QUERIES)
    def list(self, query: ListSchedules) -> None:
        self._both(lambda store: store.catalog(query))

    @invariant()
    def both_show_the_same(self) -> None:
        self._both(lambda store: store.catalog(ListSchedules(limit=MANY)))
        self._both(lambda store: store.list(Query(limit=MANY)))
        due = self._both(lambda store: store.catalog(ListDueSchedules(limit=1)))
        if due.schedules:
            after = due.schedules[0].next_at, due.schedules[0].name
            self._both(lambda store: store.catalog(ListDueSchedules(limit=2, after=after)))

    def _both(self, operation: Callable[[Store], Awaitable[Any]]) -> Any:
        """Ask both stores and check that the answers are equal. Return the model's."""

        async def ask() -> tuple[Any, Any]:
            return await operation(self.model), await operation(self.other)

        model, other = self.loop.run_until_complete(ask())
        assert _plain(other) == _plain(model)
        return model


def _plain(answer: Any) -> Any:
    return list(answer) if isinstance(answer, (list, tuple)) else answer
