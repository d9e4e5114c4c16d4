"""The fault proxy in front of Redis: connections cut exactly around a request, and TLS."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast.core.errors import InvalidRequest
from holdfast.testing.patience import GUARD_SECONDS, wait_until
from tests.proxy import CutMoment
from tests.redis import Certificate, RedisProxy, RedisServer, beside, connect, namespace_of


@pytest.fixture
def proxy(redis_url: str) -> Iterator[RedisProxy]:
    with RedisProxy(redis_url) as proxy:
        yield proxy


@pytest.fixture(params=[2, 3], ids=["RESP 2", "RESP 3"])
def client(proxy: RedisProxy, request: pytest.FixtureRequest) -> Iterator[Any]:
    with _client(proxy, protocol=request.param) as client:
        yield client


@pytest.fixture
def list_key(redis_url: str) -> str:
    return f"{{{namespace_of(redis_url)}}}:numbers"


@pytest.mark.parametrize("moment", ["before", "lost", "after"])
def test_a_connection_is_cut_before_or_after_the_execution_of_a_request(
    proxy: RedisProxy, client: Any, redis_url: str, list_key: str, moment: CutMoment
) -> None:
    client.rpush(list_key, 1)
    rule = proxy.cut_around("rpush", moment)

    if moment == "after":
        assert client.rpush(list_key, 2) == 2
    else:
        with pytest.raises(redis.ConnectionError):
            client.rpush(list_key, 2)

    rule.wait()
    assert rule.hits == 1
    assert _numbers(redis_url, list_key) == ([1] if moment == "before" else [1, 2])


def test_the_connection_is_closed_after_the_answer(proxy: RedisProxy, client: Any) -> None:
    with client.client() as single:
        proxy.cut_around("ping", "after")
        assert single.ping()

        with pytest.raises(redis.ConnectionError):
            single.ping()


def test_only_the_requested_number_of_requests_is_cut(proxy: RedisProxy, redis_url: str, list_key: str) -> None:
    rule = proxy.cut_around(lambda command: command[0] == b"RPUSH", "before", skip=1, count=2)
    with _client(proxy) as client:
        client.rpush(list_key, 1)
        for number in (2, 3):
            with pytest.raises(redis.ConnectionError):
                client.rpush(list_key, number)
        rule.wait()
        client.rpush(list_key, 4)

    assert _numbers(redis_url, list_key) == [1, 4]


@pytest.mark.parametrize("moment", ["before", "lost", "after"])
def test_requests_after_the_cut_are_not_executed(
    proxy: RedisProxy, redis_url: str, list_key: str, moment: CutMoment
) -> None:
    proxy.cut_around("rpush", moment, skip=1)

    with _client(proxy) as client, client.pipeline(transaction=False) as pipeline:
        for number in (1, 2, 3):
            pipeline.rpush(list_key, number)
        with pytest.raises(redis.ConnectionError):
            pipeline.execute()

    assert _numbers(redis_url, list_key) == ([1] if moment == "before" else [1, 2])


def test_earlier_answers_arrive(proxy: RedisProxy) -> None:
    proxy.cut_around("echo", "lost", skip=1)
    with socket.create_connection((proxy.host, proxy.port), timeout=GUARD_SECONDS) as client:
        client.sendall(_packed("ECHO", "1") + _packed("ECHO", "2"))

        assert _received(client, 7) == b"$1\r\n1\r\n"
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_request_that_arrives_byte_by_byte_is_one_request(proxy: RedisProxy) -> None:
    with socket.create_connection((proxy.host, proxy.port), timeout=GUARD_SECONDS) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in _packed("ECHO", "one\r\ntwo\r\n"):
            client.sendall(bytes([byte]))

        assert _received(client, 17) == b"$10\r\none\r\ntwo\r\n\r\n"
    assert proxy.commands == {"ECHO": 1}


def test_requests_are_counted_by_command(proxy: RedisProxy, client: Any) -> None:
    client.ping()
    before = proxy.requests

    client.ping()
    client.echo("ping")

    assert proxy.requests == before + 2
    assert (proxy.commands["PING"], proxy.commands["ECHO"]) == (2, 1)


def test_an_error_of_the_server_is_an_answer(proxy: RedisProxy, client: Any) -> None:
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("NONSENSE")
    proxy.cut_around("nonsense", "lost")

    with pytest.raises(redis.ConnectionError):
        client.execute_command("NONSENSE")


def test_messages_of_a_subscription_are_no_answers(proxy: RedisProxy, client: Any, redis_url: str) -> None:
    topics = [namespace_of(redis_url), namespace_of(beside(redis_url, "b"))]
    with client.pubsub() as listener, connect(redis_url) as publisher:
        listener.subscribe(*topics)
        assert [_next_message(listener)["type"] for _ in topics] == ["subscribe", "subscribe"]
        rule = proxy.cut_around("ping", "lost")

        publisher.publish(topics[0], "early")
        assert _next_message(listener)["data"] == b"early"
        assert rule.hits == 0

        listener.ping()
        rule.wait()


def test_a_list_that_looks_like_a_message_is_an_answer(proxy: RedisProxy, client: Any, list_key: str) -> None:
    client.rpush(list_key, "message", "a", "b")
    proxy.cut_around("lrange", "lost")

    with pytest.raises(redis.ConnectionError):
        client.lrange(list_key, 0, -1)


def test_other_connections_are_not_affected(proxy: RedisProxy, client: Any) -> None:
    client.ping()
    accepted = proxy.accepted
    proxy.cut_around("echo", "lost")
    with _client(proxy) as other, pytest.raises(redis.ConnectionError):
        other.echo("hello")

    assert client.ping()
    assert proxy.accepted == accepted + 1


def test_a_rule_ends_with_heal(proxy: RedisProxy, client: Any) -> None:
    rule = proxy.cut_around("ping", "before")

    proxy.heal()

    assert client.ping()
    assert rule.hits == 0
    with pytest.raises(TimeoutError, match=r"are still to be cut after 0\.01 seconds"):
        rule.wait(0.01)


def test_a_large_request_and_a_large_answer_pass(client: Any) -> None:
    large = bytes(range(256)) * 8_000 + b"\r\n" * 10_000

    assert client.echo(large) == large


def test_a_refusing_proxy_accepts_no_connection_until_healed(proxy: RedisProxy) -> None:
    proxy.refuse()
    with _client(proxy) as client, pytest.raises(redis.ConnectionError, match="refused"):
        client.ping()

    proxy.heal()

    with _client(proxy) as client:
        assert client.ping()


def test_a_black_hole_answers_nothing_and_delivers_late(proxy: RedisProxy, redis_url: str, list_key: str) -> None:
    with _client(proxy, socket_timeout=0.1) as client:
        client.ping()
        proxy.black_hole()
        with pytest.raises(redis.TimeoutError):
            client.rpush(list_key, 1)
    assert _numbers(redis_url, list_key) == []

    proxy.heal()

    wait_until("the request has arrived", lambda: _numbers(redis_url, list_key) == [1])


def test_new_connections_go_to_the_server_that_the_proxy_is_redirected_to(
    proxy: RedisProxy, redis_server: RedisServer
) -> None:
    with _client(proxy) as client:
        before = client.info("server")["run_id"]
        proxy.redirect_to(redis_server.url)
        assert client.info("server")["run_id"] == before

    with _client(proxy) as client:
        assert client.info("server")["run_id"] == redis_server.info()["run_id"]


def test_a_client_that_does_not_speak_resp_gets_an_error(proxy: RedisProxy) -> None:
    with socket.create_connection((proxy.host, proxy.port), timeout=GUARD_SECONDS) as client:
        client.sendall(b"PING\r\n")

        assert client.makefile("rb").readline() == b"-ERR the proxy reads requests in RESP only\r\n"


def test_the_url_of_the_proxy_has_the_password_and_the_namespace_of_the_server() -> None:
    with RedisProxy("redis://me:secret@127.0.0.1/3?namespace=mine") as proxy:
        assert proxy.url == f"redis://me:secret@127.0.0.1:{proxy.port}/3?namespace=mine"


def test_a_proxy_needs_a_server_without_encryption() -> None:
    with pytest.raises(InvalidRequest, match="must be redis:// and name its host"):
        RedisProxy("rediss://localhost")


def test_a_proxy_with_a_certificate_is_a_server_with_tls(redis_url: str, list_key: str, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path).make()

    with RedisProxy(redis_url, encryption=certificate.encryption()) as proxy:
        assert proxy.url.startswith("rediss://127.0.0.1:")
        with _client(proxy, ssl_ca_certs=str(certificate.file)) as client:
            assert client.ping()
            proxy.cut_around("rpush", "lost")
            with pytest.raises(redis.ConnectionError):
                client.rpush(list_key, 1)
        with _client(proxy) as stranger, pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            stranger.ping()
    assert _numbers(redis_url, list_key) == [1]


def test_without_openssl_one_sentence_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(InvalidRequest, match="need the program `openssl` on the PATH"):
        Certificate(tmp_path).make()


def _client(proxy: RedisProxy, **options: Any) -> redis.Redis:
    return connect(proxy.url, **options)


def _numbers(url: str, key: str) -> list[int]:
    """The numbers in a list, read without the proxy."""
    with connect(url) as client:
        return [int(number) for number in client.lrange(key, 0, -1)]


def _packed(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)


def _received(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = client.recv(count - len(data))
        assert piece
        data += piece
    return data


def _next_message(listener: Any) -> Any:
    message = listener.get_message(timeout=GUARD_SECONDS)
    assert message is not None
    return message
