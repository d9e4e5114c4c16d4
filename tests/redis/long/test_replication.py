"""Replicas of a private server: in step, cut off, promoted, and joined again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.redis import RedisProxy, RedisServer, connect


@pytest.fixture
def replica(redis_server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer(replica_of=redis_server) as replica:
        yield replica


def test_a_replica_has_what_its_primary_has(redis_server: RedisServer, replica: RedisServer) -> None:
    redis_server.ask("SET", "name", "value")

    replica.catch_up()

    assert replica.ask("GET", "name") == "value"
    with pytest.raises(redis.exceptions.ReadOnlyError):
        replica.ask("SET", "name", "other")


def test_a_primary_with_a_password_can_be_followed() -> None:
    with RedisServer({"requirepass": "secret"}) as primary, RedisServer(replica_of=primary) as replica:
        primary.ask("SET", "name", "value")
        replica.catch_up()

        assert replica.ask("GET", "name") == "value"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_replica_that_is_cut_off_gets_nothing_until_it_joins_again(
    redis_server: RedisServer, replica: RedisServer, is_restarted: bool
) -> None:
    redis_server.ask("SET", "name", "old")
    replica.catch_up()
    replica.cut_off()
    redis_server.ask("SET", "name", "new")
    if is_restarted:
        replica.restart()
    assert redis_server.ask("WAIT", 1, 50) == 0
    assert replica.ask("GET", "name") == "old"

    replica.rejoin()

    assert replica.ask("GET", "name") == "new"


def test_a_replica_follows_again_after_a_kill(redis_server: RedisServer, replica: RedisServer) -> None:
    replica.kill()
    redis_server.ask("SET", "name", "value")

    replica.start().catch_up()

    assert replica.ask("GET", "name") == "value"


def test_a_promoted_replica_takes_the_place_of_a_killed_primary(
    redis_server: RedisServer, replica: RedisServer
) -> None:
    with RedisProxy(redis_server.url) as address:
        with connect(address.url) as client:
            client.set("name", "kept")
            replica.catch_up()
            replica.cut_off()
            client.set("name", "lost")

        redis_server.kill()
        replica.promote()
        address.redirect_to(replica.url)

        with connect(address.url) as client:
            assert client.get("name") == b"kept"
            client.set("name", "written")
    redis_server.start().rejoin(replica)
    assert redis_server.ask("GET", "name") == "written"
