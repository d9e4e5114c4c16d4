"""Common parts of machines that compare a store with the model, and a faulty store that shows that they notice bugs.

A machine applies the same calls to the memory store, which is the model, and to another store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from holdfast.core.ports import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract import SettableClock
from tests.postgres import Databases

Open = Callable[[SettableClock], Store]


class SideBySide(RuleBasedStateMachine):
    """The model and another store, both open, with one clock."""

    def __init__(self, open_other: Open) -> None:
        super().__init__()
        self.clock = SettableClock()
        self.loop = asyncio.new_event_loop()
        self.model = MemoryStore(clock=self.clock)
        self.other = open_other(self.clock)
        self.loop.run_until_complete(self.model.open())
        self.loop.run_until_complete(self.other.open())

    def teardown(self) -> None:
        self.loop.run_until_complete(self.other.close())
        self.loop.close()


def drive(machine: Callable[[Open], SideBySide], open_other: Open, like: settings, steps: int) -> None:
    """Let a machine compare a store with the model, in many examples of a given number of steps."""
    run_state_machine_as_test(
        lambda: machine(open_other),  # type: ignore[arg-type]  # anything that makes one will do
        settings=settings(
            like,
            stateful_step_count=steps,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def sqlite_stores(folder: Path) -> Open:
    """Return a new file for each example."""
    numbers = count()
    return lambda clock: SqliteStore(folder / f"{next(numbers)}.db", clock=clock)


def postgres_stores(databases: Databases, lent: ExitStack, prepare: Callable[[], object] = lambda: None) -> Open:
    """Return the database of the previous example, cleaned."""

    def open_other(clock: SettableClock) -> Store:
        lent.close()
        url = lent.enter_context(databases.lend(is_migrated=True))
        prepare()
        return PostgresStore(url, clock=clock)

    return open_other


class SickUnit(StateUnit):
    """A store with a bug; the model beside it stays correct."""


class SickStore(MemoryStore):
    def __init__(self, clock: SettableClock) -> None:
        super().__init__(clock=clock)
        self._unit = SickUnit(self._state)


def infect(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, bug: Callable[..., object]) -> None:
    """Replace one function of the faulty store by a bug, which gets the correct function as first argument."""
    right = getattr(module, name)

    def wrong(unit: StateUnit, *given: Any, **named: Any) -> object:
        return bug(right, unit, *given, **named) if isinstance(unit, SickUnit) else right(unit, *given, **named)

    monkeypatch.setattr(module, name, wrong)


def like_each_time(max_examples: int) -> settings:
    """Use the same examples each time, so that a bug is found each time, without shrinking."""
    return settings(
        max_examples=max_examples, derandomize=True, database=None, phases=[Phase.generate], print_blob=False
    )
