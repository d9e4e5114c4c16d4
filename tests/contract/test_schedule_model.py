"""Every store keeps schedules like the model for all sequences of calls, and the machine detects bugs.

`HOLDFAST_MODEL_EXAMPLES=2000 pytest tests/contract/test_schedule_model.py` runs longer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from msgspec.structs import replace

from holdfast.core import schedules as rules
from holdfast.core.clock import Micros
from holdfast.core.commands import Fired
from holdfast.core.model import Firing, Schedule
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import schedules
from tests.contract.key_value_stores import dictionary_store, redis_stores
from tests.contract.schedule_machine import ScheduleMachine
from tests.contract.side_by_side import SickStore, drive, infect, like_each_time, postgres_stores, sqlite_stores
from tests.duration import lasting
from tests.plugin.tiers import amount
from tests.postgres import Databases
from tests.redis import Namespaces

EXAMPLES = amount(short=10, long=60, variable="HOLDFAST_MODEL_EXAMPLES")
POSTGRES_EXAMPLES = amount(short=3, long=20, variable="HOLDFAST_MODEL_EXAMPLES")
STEPS = 30


@pytest.mark.both_tiers
@lasting(EXAMPLES / 5)
def test_the_sqlite_store_keeps_schedules_like_the_model(tmp_path: Path) -> None:
    drive(ScheduleMachine, sqlite_stores(tmp_path), settings(max_examples=EXAMPLES), STEPS)


@pytest.mark.both_tiers
@lasting(POSTGRES_EXAMPLES)
def test_the_postgres_store_keeps_schedules_like_the_model(postgres_databases: Databases) -> None:
    with ExitStack() as lent:
        stores = postgres_stores(postgres_databases, lent)
        drive(ScheduleMachine, stores, settings(max_examples=POSTGRES_EXAMPLES), STEPS)


@pytest.mark.both_tiers
@lasting(EXAMPLES / 5)
def test_the_key_value_store_keeps_schedules_like_the_model() -> None:
    drive(ScheduleMachine, dictionary_store, settings(max_examples=EXAMPLES), STEPS)


@pytest.mark.long
@lasting(POSTGRES_EXAMPLES)
def test_the_redis_store_keeps_schedules_like_the_model(redis_namespaces: Namespaces) -> None:
    with ExitStack() as lent:
        stores = redis_stores(redis_namespaces, lent)
        drive(ScheduleMachine, stores, settings(max_examples=POSTGRES_EXAMPLES), STEPS)


# Each of these bugs replaces one function of the memory store. The machine must detect it.


def fires_what_was_changed(
    right: Callable[..., list[Fired]], unit: StateUnit, firings: list[Firing], now: Micros
) -> list[Fired]:
    for firing in firings:
        unit.schedules.put(firing.schedule)
    return right(unit, firings, now)


def forgets_what_goes_on(right: Callable[..., list[str]], unit: StateUnit, schedule: Schedule) -> list[str]:
    del right, unit, schedule
    return []


def begins_anew_whenever_it_is_set(
    right: Callable[..., list[Schedule]], unit: StateUnit, wanted: list[Schedule], now: Micros
) -> list[Schedule]:
    for schedule in wanted:
        unit.schedules.remove(schedule.name)
    return right(unit, wanted, now)


def triggers_again(right: Callable[..., bool], unit: StateUnit, name: str, run_id: str, now: Micros) -> bool:
    schedule = unit.schedules.get(name)
    answer = right(unit, name, run_id, now)
    if schedule is not None:
        unit.schedules.put(replace(rules.having_made(schedule, (), [run_id]), updated_at=now))
    return answer


BUGS: dict[Callable[..., object], str] = {
    fires_what_was_changed: "fire",
    forgets_what_goes_on: "_open_run_ids",
    begins_anew_whenever_it_is_set: "put",
    triggers_again: "trigger",
}


@pytest.mark.long
@lasting(20)
@pytest.mark.parametrize("bug", BUGS)
def test_the_schedule_machine_detects_the_bug(bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    infect(monkeypatch, schedules, BUGS[bug], bug)

    with pytest.raises(AssertionError):
        drive(ScheduleMachine, SickStore, like_each_time(500), STEPS)
