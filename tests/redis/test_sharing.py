"""One Redis server for all processes of a test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis

from holdfast.testing.patience import wait_until
from tests.redis import RedisServer, connect, shared_namespaces
from tests.redis.cleaning import product_of
from tests.redis.installation import VARIABLE

SHARER = """
import sys
from pathlib import Path
from tests.redis import shared_namespaces
with shared_namespaces(Path(sys.argv[1]), int(sys.argv[2])) as namespaces:
    print(namespaces.url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_the_shared_server_is_durable_and_never_evicts(tmp_path: Path) -> None:
    with shared_namespaces(tmp_path) as namespaces, connect(namespaces.url) as client:
        settings = client.config_get("appendonly", "appendfsync", "maxmemory-policy")

    assert settings == {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}


@pytest.mark.long
def test_processes_share_a_server_until_the_last_one_has_left(tmp_path: Path) -> None:
    sharers = [
        subprocess.Popen(
            [sys.executable, "-c", SHARER, str(tmp_path), str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for worker in range(2)
    ]
    urls = [sharer.stdout.readline().decode().strip() for sharer in sharers if sharer.stdout is not None]
    servers = {url.rpartition("/")[0] for url in urls}
    assert len(servers) == 1
    assert [url.rpartition("/")[2] for url in urls] == ["1", "2"]
    sharers[0].kill()
    sharers[0].communicate()
    with shared_namespaces(tmp_path, 2) as ours:
        assert ours.url == f"{servers.pop()}/3"
    assert _answers(urls[1])

    sharers[1].kill()
    sharers[1].communicate()

    wait_until("the server does not answer any more", lambda: not _answers(urls[1]))


@pytest.mark.long
def test_a_process_that_comes_after_the_last_one_has_left_gets_a_new_server(tmp_path: Path) -> None:
    with shared_namespaces(tmp_path) as first:
        pass
    wait_until("the server does not answer any more", lambda: not _answers(first.url))

    with shared_namespaces(tmp_path) as second:
        assert _answers(second.url)


def test_a_url_in_the_environment_is_used_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    monkeypatch.setenv(VARIABLE, redis_server.url)

    with shared_namespaces(tmp_path, worker=7) as namespaces:
        assert namespaces.url == redis_server.url

    assert list(tmp_path.iterdir()) == []


def test_the_product_of_a_server_is_known(redis_server: RedisServer) -> None:
    assert product_of(redis_server.url) == str(redis_server.installation)


def _answers(url: str) -> bool:
    with connect(url) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
