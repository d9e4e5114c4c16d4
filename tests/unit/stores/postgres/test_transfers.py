"""Imports into Postgres: no event is lost if an import is cut off, or if other sessions emit meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from holdfast.core.errors import InvalidRequest
from holdfast.core.transfer import KeptEvent, Restoration
from holdfast.stores.operations import transfers as operations
from holdfast.stores.postgres import PostgresStore, transfers
from holdfast.stores.postgres.scripts import Script
from holdfast.testing.contract import START
from holdfast.testing.contract.arrange import transfer_of

LAST_EVENT = 30


@pytest_asyncio.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


def an_import(number: int) -> Restoration:
    """Return an export with one event."""
    event = KeptEvent(number=number, topic="paid", id="imported", payload="1", at=START)
    return Restoration(export_id="x", last_event=LAST_EVENT, events=(event,))


async def test_an_import_that_was_cut_off_is_repeated_without_loss(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence does not roll back, so the numbers of the first try are in use when the import is repeated."""

    def be_cut_off(*_: object) -> None:
        raise InvalidRequest("the process was killed")

    with monkeypatch.context() as patch:
        patch.setattr(operations, "restore", be_cut_off)
        with pytest.raises(InvalidRequest):
            await transfer_of(store).restore(an_import(20))

    restored = await transfer_of(store).restore(an_import(20))

    assert (restored.events, restored.skipped) == (1, 0)


async def test_an_import_never_uses_a_number_that_another_session_draws_meanwhile(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = transfers.reserved

    def emit() -> None:
        with psycopg.connect(postgres_url) as other:
            other.execute(f"select nextval('{store._address.schema}.events_number_seq')")

    monkeypatch.setattr(transfers, "reserved", lambda *args: _meanwhile(reserve(*args), "generate_series", emit))

    restored = await transfer_of(store).restore(an_import(1))

    assert (restored.events, restored.skipped) == (0, 1)


def _meanwhile(script: Script[Any], statement: str, act: Callable[[], None]) -> Script[Any]:
    """Act before a script executes a statement."""
    answer = None
    while True:
        try:
            asked = script.send(answer)
        except StopIteration as end:
            return end.value
        if statement in str(asked[0]):
            act()
        answer = yield asked
