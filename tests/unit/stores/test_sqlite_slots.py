"""Slots of an SQLite store that do not match its runs, which never happens, are detected and repaired."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
import pytest_asyncio

from holdfast.core.commands import ChangeTypes
from holdfast.core.model import TypeChange
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract.arrange import TYPE, an_id, an_intent, claim, claimed_ids, start


@pytest_asyncio.fixture
async def store(store: SqliteStore) -> SqliteStore:
    """One slot, which one run has and another waits for."""
    await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=1)]))
    await start(store, an_intent(1), an_intent(2))
    await claim(store)
    return store


async def level(store: SqliteStore) -> str:
    (found,) = [finding for finding in await store.check() if finding.subject == "slots"]
    return found.level


async def test_matching_slots_cause_no_finding(store: SqliteStore) -> None:
    assert await level(store) == "ok"


@pytest.mark.parametrize(
    "damage",
    [
        "delete from slot",
        "insert into slot values ('type:x', 'nobody')",
        "insert into slot select 'type:x', id from run where worker is null",
        "update run set worker = null, ready_at = null, state = 'succeeded', finished_at = 1 where worker is not null",
    ],
)
async def test_each_mismatch_is_a_problem(store: SqliteStore, path: Path, damage: str) -> None:
    apsw.Connection(str(path)).execute(damage)

    assert await level(store) == "problem"


async def test_a_run_that_ended_with_its_slot_loses_it_when_limits_change(store: SqliteStore, path: Path) -> None:
    apsw.Connection(str(path)).execute(
        "update run set worker = null, ready_at = null, state = 'succeeded', finished_at = 1 where worker is not null"
    )
    assert await claimed_ids(store) == []

    await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=2)]))
    await store.apply(ChangeTypes(changes=[TypeChange(name=TYPE, concurrency=1)]))

    assert await level(store) == "ok"
    assert await claimed_ids(store) == [an_id(2)]
