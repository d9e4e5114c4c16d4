"""A private Redis server: durable, private, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.testing.patience import wait_until
from tests.private_server import free_port
from tests.redis import RedisServer, connect, process, server

OWNER = """
import sys
from tests.redis import RedisServer
with RedisServer() as server:
    print(server.pid, server.folder, flush=True)
    sys.stdin.read()
"""


def test_a_private_server_keeps_everything_and_evicts_nothing(redis_server: RedisServer) -> None:
    names = ("appendonly", "appendfsync", "maxmemory-policy")

    assert [redis_server.ask("CONFIG", "GET", name)[name] for name in names] == ["yes", "always", "noeviction"]


def test_settings_can_be_chosen_and_changed_for_the_next_start() -> None:
    with RedisServer({"maxmemory-policy": "allkeys-lru", "save": "900 1"}) as server:
        assert server.ask("CONFIG", "GET", "maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
        assert server.ask("CONFIG", "GET", "save") == {"save": "900 1"}

        server.settings["maxmemory-policy"] = "volatile-ttl"
        server.restart()

        assert server.ask("CONFIG", "GET", "maxmemory-policy") == {"maxmemory-policy": "volatile-ttl"}


def test_a_full_server_refuses_writes() -> None:
    with RedisServer({"maxmemory": 1}) as server, pytest.raises(redis.exceptions.OutOfMemoryError):
        server.ask("SET", "name", "value")


def test_a_password_is_required_and_part_of_the_url() -> None:
    with RedisServer({"requirepass": "a/b"}) as server:
        with connect(server.url) as client:
            assert client.ping()
        with connect(server.url_of()) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_users_have_the_rights_that_the_settings_give_them() -> None:
    users = ["default off", "reader on >secret ~* +get"]
    with RedisServer({"user": users}) as server:
        with connect(server.url_of("reader", "secret")) as reader:
            assert reader.get("name") is None
            with pytest.raises(redis.exceptions.NoPermissionError):
                reader.set("name", "value")
        with connect(server.url) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_a_restart_keeps_the_address_and_the_data(redis_server: RedisServer) -> None:
    url, run_id = redis_server.url, redis_server.info()["run_id"]
    redis_server.ask("SET", "name", "value")

    redis_server.restart()

    assert redis_server.url == url
    assert redis_server.ask("GET", "name") == "value"
    assert redis_server.info()["run_id"] != run_id


def test_a_stopped_server_takes_no_connections_until_it_is_started(redis_server: RedisServer) -> None:
    redis_server.stop()
    assert redis_server.pid is None
    with connect(redis_server.url) as client, pytest.raises(redis.ConnectionError, match="refused"):
        client.ping()

    redis_server.start()

    with connect(redis_server.url) as client:
        assert client.ping()


def test_a_running_server_is_not_started_again(redis_server: RedisServer) -> None:
    pid = redis_server.pid

    redis_server.start()

    assert redis_server.pid == pid is not None


@pytest.mark.long
def test_a_killed_server_keeps_what_it_has_confirmed(redis_server: RedisServer) -> None:
    with connect(redis_server.url) as witness:
        for number in range(100):
            witness.rpush("numbers", number)

        redis_server.kill()

        assert redis_server.pid is None
        with pytest.raises(redis.ConnectionError):
            witness.ping()
    redis_server.start()
    assert redis_server.ask("LLEN", "numbers") == 100


@pytest.mark.long
def test_a_killed_server_without_a_log_has_lost_everything() -> None:
    with RedisServer({"appendonly": "no"}) as server:
        server.ask("SET", "name", "value")

        server.kill()

        assert server.start().ask("GET", "name") is None


def test_a_paused_server_answers_when_it_is_resumed(redis_server: RedisServer) -> None:
    redis_server.pause()
    with pytest.raises(redis.TimeoutError):
        redis_server.ask("PING", seconds=0.05)
    assert redis_server.pid is not None

    redis_server.resume()

    assert redis_server.ask("PING")


@pytest.mark.parametrize("end", [RedisServer.stop, RedisServer.kill])
def test_a_paused_server_can_be_ended(redis_server: RedisServer, end: object) -> None:
    assert callable(end)
    redis_server.pause()

    end(redis_server)

    assert redis_server.pid is None


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(StoreUnavailable, match=r"(?s)did not start; .*appendfsync.*argument"):
        RedisServer({"appendfsync": "seldom"}).__enter__()


def test_a_server_that_finds_another_one_on_its_port_takes_another_port(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([redis_server.port, free_port()])
    monkeypatch.setattr(server, "free_port", lambda: next(ports))

    with RedisServer() as late:
        assert late.port != redis_server.port
        assert late.info()["process_id"] == late.pid


def test_a_server_that_is_not_started_has_no_address() -> None:
    with pytest.raises(InvalidRequest, match="has not been started, or is closed"):
        _ = RedisServer().url


def test_a_closed_server_leaves_nothing_behind() -> None:
    with RedisServer() as server:
        folder, pid = server.folder, server.pid

    assert not folder.exists()
    assert pid is not None
    with pytest.raises(ProcessLookupError):  # not even a zombie
        os.kill(pid, 0)


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which has a server."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        yield owner


@pytest.mark.long
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_server_ends_with_the_process_that_started_it_however_that_ends(
    owner: subprocess.Popen[bytes], is_paused: bool
) -> None:
    assert owner.stdout is not None
    pid, name = owner.stdout.readline().decode().strip().split(" ", 1)
    folder = Path(name)
    assert process.pid_of(folder) == int(pid)
    if is_paused:
        process.send_signal(folder, signal.SIGSTOP)

    owner.kill()

    wait_until("the server and its folder are gone", lambda: not process.is_running(folder) and not folder.exists())


def test_the_folder_of_a_server_may_have_a_long_name_with_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long " * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    with RedisServer() as server:
        assert server.folder.is_relative_to(long)
        assert server.ask("SET", "name", "value")
        assert list(server.folder.glob("data/appendonlydir/*"))
