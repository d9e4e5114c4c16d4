"""Namespaces for tests: each is empty at its beginning and its end, and keys outside of it are noticed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from holdfast.core.errors import InvalidRequest
from holdfast.testing.patience import GUARD_SECONDS
from tests.redis import Namespaces, RedisServer, beside, connect, keys_of, namespace_of, with_namespace


@pytest.fixture
def namespaces(redis_server: RedisServer) -> Iterator[Namespaces]:
    with Namespaces(redis_server.url) as namespaces:
        yield namespaces


def test_each_test_has_a_namespace_of_its_own(namespaces: Namespaces) -> None:
    with namespaces.lend() as one, namespaces.lend() as other:
        assert namespace_of(one) != namespace_of(other)


def test_all_keys_of_a_namespace_are_removed_at_its_end(namespaces: Namespaces, redis_server: RedisServer) -> None:
    with namespaces.lend() as url:
        _write(url, f"{{{namespace_of(url)}}}", *(f"{{{namespace_of(url)}}}:{number}" for number in range(3_000)))
        _write(url, f"{{{namespace_of(beside(url, 'b'))}}}:r")

    assert redis_server.ask("DBSIZE") == 0


def test_requests_under_way_at_the_end_are_not_executed_later(
    namespaces: Namespaces, redis_server: RedisServer
) -> None:
    with socket.create_connection(("127.0.0.1", redis_server.port)) as flood:
        with namespaces.lend() as url:
            key = f"{{{namespace_of(url)}}}:r".encode()
            request = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$1\r\n1\r\n" % (len(key), key)
            flood.sendall(request * 20_000)

        assert redis_server.ask("DBSIZE") == 0
        flood.settimeout(GUARD_SECONDS)
        with suppress(ConnectionResetError):
            _read_to_end(flood)
    assert redis_server.ask("DBSIZE") == 0


def test_a_stray_key_fails_its_test_and_no_later_one(namespaces: Namespaces) -> None:
    with pytest.raises(AssertionError, match=r"outside of the namespace 'test_.*' of the test: runs"):
        _use(namespaces, "runs", "{%s}:r")

    _use(namespaces, "{%s}:r")


def test_a_key_of_another_namespace_is_a_stray(namespaces: Namespaces) -> None:
    with pytest.raises(AssertionError, match=r"of the test: \{test_other\}:r"):
        _use(namespaces, "{test_other}:r")


def test_the_error_of_a_test_is_raised_in_spite_of_stray_keys(namespaces: Namespaces) -> None:
    def failing() -> None:
        with namespaces.lend() as url:
            _write(url, "runs")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()


def test_in_a_shared_database_the_keys_of_others_stay(redis_server: RedisServer) -> None:
    with Namespaces(redis_server.url, is_shared=True) as namespaces, namespaces.lend() as others:
        key = f"{{{namespace_of(others)}}}:r"
        _write(others, key)
        with pytest.raises(AssertionError, match="of the test: mine"):
            _use(namespaces, "mine")

        assert sorted(redis_server.ask("KEYS", "*")) == ["mine", key]
        redis_server.ask("DEL", "mine")


def test_the_keys_of_a_namespace_are_returned_without_its_name(redis_url: str) -> None:
    namespace = namespace_of(redis_url)
    _write(redis_url, f"{{{namespace}}}:r:2", f"{{{namespace}}}:r:1", f"{{{namespace}_b}}:r:3")

    assert keys_of(redis_url) == ["r:1", "r:2"]
    assert keys_of(beside(redis_url, "b")) == ["r:3"]


def test_the_name_of_a_namespace_is_no_pattern(redis_server: RedisServer) -> None:
    url = redis_server.url_of(namespace="a*[b]")
    _write(url, "{a*[b]}:r:1", "{aab}:r:2")

    assert keys_of(url) == ["r:1"]


def test_a_url_keeps_its_other_parts_when_its_namespace_changes() -> None:
    url = "rediss://me:secret@host:1/2?namespace=old&allow_volatile=1"

    assert with_namespace(url, "new") == "rediss://me:secret@host:1/2?namespace=new&allow_volatile=1"


def test_a_client_connects_by_the_url_of_a_store(redis_url: str) -> None:
    with connect(f"{redis_url}&allow_volatile=1") as client:
        assert client.ping()


def test_a_url_without_a_namespace_has_no_keys() -> None:
    with pytest.raises(InvalidRequest, match="must name one namespace"):
        keys_of("redis://localhost")


def _read_to_end(client: socket.socket) -> None:
    while client.recv(1 << 16):
        pass


def _use(namespaces: Namespaces, *keys: str) -> None:
    """Write keys, in a namespace of their own where the name has a place for it."""
    with namespaces.lend() as url:
        _write(url, *(key.replace("%s", namespace_of(url)) for key in keys))


def _write(url: str, *keys: str) -> None:
    with connect(url) as client, client.pipeline() as pipeline:
        for key in keys:
            pipeline.set(key, "value")
        pipeline.execute()
