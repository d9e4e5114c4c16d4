"""Every store keeps schedules like the model, whatever is done to them; and the machine notices what is wrong.

`HOLDFAST_MODEL_EXAMPLES=2000 pytest tests/contract/test_schedule_model.py` looks longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from holdfast.core import schedules as rules
from holdfast.core.clock import Micros
from holdfast.core.model import Firing, Schedule
from holdfast.core.ports import Fired, Store
from holdfast.stores.memory import MemoryStore, schedules
from holdfast.stores.memory.state import State
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract import SettableClock
from holdfast.testing.postgres import Databases
from tests.contract.schedule_machine import ScheduleMachine

EXAMPLES = int(os.environ.get("HOLDFAST_MODEL_EXAMPLES", "30"))
POSTGRES_EXAMPLES = int(os.environ.get("HOLDFAST_MODEL_EXAMPLES", "8"))
STEPS = 30


def drive(open_other: Callable[[SettableClock], Store], like: settings) -> None:
    class Machine(ScheduleMachine):
        def __init__(self) -> None:
            super().__init__(open_other)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            like,
            stateful_step_count=STEPS,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(60 + EXAMPLES * 2)
def test_the_sqlite_store_keeps_schedules_like_the_model(tmp_path: Path) -> None:
    numbers = count()

    drive(lambda clock: SqliteStore(tmp_path / f"{next(numbers)}.db", clock=clock), settings(max_examples=EXAMPLES))


@pytest.mark.timeout(60 + POSTGRES_EXAMPLES * 10)
def test_the_postgres_store_keeps_schedules_like_the_model(postgres_databases: Databases) -> None:
    with ExitStack() as lent:

        def open_other(clock: SettableClock) -> Store:
            lent.close()  # the one before is cleaned, and lent again
            return PostgresStore(lent.enter_context(postgres_databases.lend(is_migrated=True)), clock=clock)

        drive(open_other, settings(max_examples=POSTGRES_EXAMPLES))


# The machine is worth what it finds: each of these bugs stands in for one right function of the memory store.


class SickState(State):
    """Only what is done to this one is done wrongly; the model beside it stays right."""


class SickStore(MemoryStore):
    def __init__(self, clock: SettableClock) -> None:
        super().__init__(clock=clock)
        self._state = SickState()


def fires_what_was_changed(right: Callable[..., Fired], state: State, firing: Firing, now: Micros) -> Fired:
    state.schedules[firing.schedule.name] = firing.schedule
    return right(state, firing, now)


def forgets_what_goes_on(right: Callable[..., list[str]], state: State, schedule: Schedule) -> list[str]:
    del right, state, schedule
    return []


def begins_anew_whenever_it_is_set(
    right: Callable[..., list[Schedule]], state: State, wanted: list[Schedule], now: Micros
) -> list[Schedule]:
    for schedule in wanted:
        state.schedules.pop(schedule.name, None)
    return right(state, wanted, now)


def triggers_again(right: Callable[..., bool], state: State, name: str, run_id: str, now: Micros) -> bool:
    schedule = state.schedules.get(name)
    told = right(state, name, run_id, now)
    if schedule is not None:
        state.schedules[name] = replace(rules.having_made(schedule, (), [run_id]), updated_at=now)
    return told


BUGS: dict[Callable[..., object], str] = {
    fires_what_was_changed: "_fire_one",
    forgets_what_goes_on: "_open_run_ids",
    begins_anew_whenever_it_is_set: "put",
    triggers_again: "trigger",
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_notices(bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(schedules, BUGS[bug])

    def wrong(state: State, *given: object) -> object:
        return bug(right, state, *given) if isinstance(state, SickState) else right(state, *given)

    monkeypatch.setattr(schedules, BUGS[bug], wrong)
    like = settings(max_examples=500, derandomize=True, database=None, phases=[Phase.generate], print_blob=False)

    with pytest.raises(AssertionError):
        drive(SickStore, like)
