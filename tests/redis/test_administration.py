"""Administration of a namespace without a store: it reads and removes, and begins no epoch."""

from __future__ import annotations

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import SchemaStatus
from holdfast.stores.kv.migrations import MIGRATIONS
from holdfast.stores.redis import RedisDriver, redis_store
from holdfast.stores.redis.driver import erase
from tests.redis.cleaning import connect, keys_of
from tests.redis.namespaces import beside
from tests.redis.server import RedisServer


async def test_a_field_of_an_empty_namespace_is_none_and_nothing_is_written(redis_url: str) -> None:
    assert RedisDriver(redis_url).peek("meta", ["schema"]) == {}
    assert keys_of(redis_url) == []


async def test_a_store_that_is_not_open_knows_its_schema_number(redis_url: str) -> None:
    store = redis_store(redis_url)
    assert store.schema() == SchemaStatus(current=0, wanted=MIGRATIONS.number)

    await store.open()
    await store.close()

    found = redis_store(redis_url).schema()
    assert (found.current, found.wanted, found.pending) == (MIGRATIONS.number, MIGRATIONS.number, ())
    assert [step.name for step in found.applied] == [migration.step.name for migration in MIGRATIONS.all]


async def test_reading_a_field_begins_no_epoch_after_a_restart(redis_server: RedisServer) -> None:
    driver = RedisDriver(redis_server.url)
    await driver.open()
    await driver.close()
    known = driver.peek("meta", ["epoch"])
    redis_server.restart()

    assert driver.peek("meta", ["epoch"]) == known


async def test_erasing_removes_all_keys_of_one_namespace_only(redis_url: str) -> None:
    others = [beside(redis_url, "2"), beside(redis_url, "x")]
    for url in (redis_url, *others):
        store = redis_store(url)
        await store.open()
        await store.close()
    with connect(redis_url) as client:
        name = f"{{{redis_url.partition('namespace=')[2]}}}:"
        client.mset({f"{name}{number}": "" for number in range(2_500)})
    before = [keys_of(url) for url in others]

    erase(redis_url)

    assert keys_of(redis_url) == []
    assert [keys_of(url) for url in others] == before
    assert all(before)


def test_a_server_that_is_away_is_unavailable(redis_server: RedisServer) -> None:
    url = redis_server.url
    redis_server.stop()

    with pytest.raises(StoreUnavailable, match="no server listens there"):
        erase(url)
    with pytest.raises(StoreUnavailable, match="no server listens there"):
        redis_store(url).schema()


def test_keys_of_another_program_are_named(redis_url: str) -> None:
    namespace = redis_url.partition("namespace=")[2]
    with connect(redis_url) as client:
        client.set(f"{{{namespace}}}:meta", "mine")

    with pytest.raises(StoreUnavailable, match="has keys of another program under the names of this store"):
        redis_store(redis_url).schema()
