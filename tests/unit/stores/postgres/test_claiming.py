"""Claiming on Postgres: what a claim does not see, and how it comes to see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.core.hint import Hint
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import TYPE, a_message, an_intent, start


@pytest_asyncio.fixture
async def store(postgres_store_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_store_url, clock=SettableClock())
    await store.open()
    yield store
    await store.close()


async def test_a_due_run_is_told_of_again_after_somebody_has_locked_it(store: PostgresStore) -> None:
    # A claim passes over what is locked, so one that was made meanwhile may have found nothing.
    await start(store, an_intent())
    await store.send([a_message()])
    await asyncio.sleep(0)
    hints: list[Hint] = []
    store.listen(hints.append)

    await store.send([a_message()])  # the same one again: nothing changes
    await asyncio.sleep(0)

    assert {TYPE} in [hint.ready for hint in hints]
