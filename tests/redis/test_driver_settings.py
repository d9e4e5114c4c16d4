"""Settings of a server: which ones the Redis driver refuses, and what it tells about the others."""

from __future__ import annotations

import logging

import pytest

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.stores.redis import RedisDriver
from holdfast.testing.patience import until
from tests.redis.server import RedisServer


async def _opened(url: str) -> None:
    driver = RedisDriver(url)
    try:
        await driver.open()
    finally:
        await driver.close()


async def _findings(url: str) -> dict[str, tuple[str, str]]:
    driver = RedisDriver(url)
    await driver.open()
    found = await driver.check()
    await driver.close()
    return {finding.subject: (finding.level, finding.text) for finding in found}


async def test_an_eviction_policy_is_refused_and_nothing_is_written(redis_server: RedisServer) -> None:
    redis_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    with pytest.raises(InvalidRequest, match="CONFIG SET maxmemory-policy noeviction"):
        await _opened(redis_server.url)

    assert redis_server.ask("DBSIZE") == 0
    redis_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await _opened(redis_server.url)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "CONFIG SET maxmemory-policy noeviction"),
        ({"appendonly": "no"}, "CONFIG SET appendonly yes"),
    ],
)
async def test_a_server_that_became_unsafe_is_reported_once_by_the_processes_that_use_it(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture, settings: dict[str, str], message: str
) -> None:
    """For example a replica with other settings, which was promoted. To stop would help as little as to go on."""
    driver = RedisDriver(redis_server.url)
    await driver.open()
    for name, value in settings.items():
        redis_server.ask("CONFIG", "SET", name, value)
    for _ in range(2):
        redis_server.ask("CLIENT", "KILL", "TYPE", "normal")
        await until("the connection is lost", lambda: driver._connection is None or not driver._connection.is_open)
        await driver.load([])
    await driver.close()

    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert message in error


async def test_a_server_that_keeps_nothing_is_refused_unless_that_is_wanted(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.ask("CONFIG", "SET", "appendonly", "no")

    with pytest.raises(InvalidRequest, match=r"CONFIG SET appendonly yes .*\?allow_volatile=1"):
        await _opened(redis_server.url)

    await _opened(f"{redis_server.url}?allow_volatile=1")
    assert "every restart loses all runs" in caplog.text


async def test_snapshots_alone_are_accepted_with_a_warning(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.ask("CONFIG", "SET", "appendonly", "no")
    redis_server.ask("CONFIG", "SET", "save", "3600 1")

    await _opened(redis_server.url)

    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "a crash loses all writes since the last one" in caplog.text
    assert (await _findings(redis_server.url))["durability"][0] == "warning"


async def test_what_an_append_only_file_can_lose_is_logged(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await _opened(redis_server.url)
    assert caplog.records == []

    redis_server.ask("CONFIG", "SET", "appendfsync", "everysec")
    await _opened(redis_server.url)

    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "a crash of the machine loses about the last second" in caplog.text


async def test_a_replica_is_refused(redis_server: RedisServer) -> None:
    with RedisServer(replica_of=redis_server) as replica:
        with pytest.raises(StoreUnavailable, match="is a replica, which cannot be written; name the primary"):
            await _opened(replica.url)
        found = await _findings(redis_server.url)
    assert found["replication"][1].startswith("1 replicas; min-replicas-to-write is 0")
    assert "a failover loses the last writes" in found["durability"][1]


async def test_cluster_mode_is_refused() -> None:
    with (
        RedisServer({"cluster-enabled": "yes", "databases": 1}) as server,
        pytest.raises(InvalidRequest, match="is in cluster mode, which this store does not support yet"),
    ):
        await _opened(server.url)


async def test_a_service_that_hides_its_settings_is_used_with_a_warning(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.settings["user"] = "shy on >secret ~* &* +@all -@dangerous"
    redis_server.restart()
    url = redis_server.url_of("shy", "secret")

    await _opened(url)

    assert "does not show maxmemory-policy, appendonly, appendfsync, save to this user" in caplog.text
    found = await _findings(url)
    assert {found[subject][0] for subject in ("server", "eviction", "durability")} == {"warning"}


async def test_the_user_of_the_advice_is_able_to_do_everything(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.settings["user"] = (
        "app on >secret ~{jobs}:* resetchannels &{jobs}:* +@all -@dangerous +info +config|get"
    )
    redis_server.restart()

    found = await _findings(redis_server.url_of("app", "secret", namespace="jobs"))

    assert {level for level, _ in found.values()} == {"ok"}
    assert caplog.records == []


async def test_the_check_reports_memory_and_connections(redis_server: RedisServer) -> None:
    found = await _findings(redis_server.url)
    assert [found[subject][0] for subject in ("server", "memory", "connections", "epochs")] == ["ok"] * 4

    used = redis_server.info()["used_memory"]
    redis_server.ask("CONFIG", "SET", "maxmemory", int(used * 1.1))
    redis_server.ask("CONFIG", "SET", "maxclients", 4)
    found = await _findings(redis_server.url)

    assert found["memory"][0] == "warning"
    assert "raise maxmemory" in found["memory"][1]
    assert "of 4 connections are in use" in found["connections"][1]
