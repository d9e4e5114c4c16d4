"""The command line on Redis: it works as on other stores, and a typo in a URL creates nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.redis import RedisServer, connect, keys_of
from tests.unit.cli.rig import Shop


@pytest.fixture
def shop(redis_url: str, tmp_path: Path) -> Shop:
    """A shop whose runs are on Redis. Its namespace is empty."""
    shop = Shop(tmp_path)
    shop.url = redis_url
    return shop


@pytest.mark.parametrize("words", ["ls", "doctor", "cancel x --yes", "export", "migrate --plan"])
def test_a_command_that_needs_runs_creates_no_namespace(shop: Shop, words: str) -> None:
    result = shop.type(*words.split())

    if words == "migrate --plan":
        assert (result.exit_code, "no schema yet" in result.stdout) == (0, True)
    else:
        assert result.exit_code == 5
        assert f"there is no holdfast database at {shop.url}" in result.stderr
    assert keys_of(shop.url) == []


def test_runs_are_started_executed_and_shown(shop: Shop) -> None:
    assert shop.read("migrate")["is_made"] is True
    run = shop.read("start", "shop.order.v1", "name=tea", "--key", "k")["id"]
    shop.work()
    assert shop.type("send", "key:k", "approve", "by=ada").exit_code == 0
    shop.work()

    assert shop.read("result", run)["result"] == {"paid": "paid for tea", "approval": {"by": "ada"}}
    assert [one["id"] for one in shop.read("ls")] == [run]
    assert shop.read("history", run)[0]["location"] == "charge"


def test_the_doctor_says_what_the_server_can_lose(shop: Shop) -> None:
    shop.type("migrate")
    result = shop.type("doctor")

    assert result.exit_code == 0
    assert "eviction" in result.stdout
    assert "appendfsync everysec: a crash of the machine loses about the last second" in result.stdout
    assert "the server was never restarted or replaced" in result.stdout


def test_a_store_of_another_version_is_refused_and_left_unchanged(shop: Shop) -> None:
    shop.type("migrate")
    namespace = shop.url.partition("namespace=")[2]
    with connect(shop.url) as client:
        client.hset(f"{{{namespace}}}:meta", mapping={"schema": "99", "compatible_from": "99"})
    result = shop.type("ls")

    assert result.exit_code == 5
    assert "has schema number 99, made by a newer version of holdfast" in result.stderr


@pytest.mark.parametrize(
    ("url", "message", "code"),
    [
        ("redis://ann@host", "has a user but no password", 2),
        ("redis://:secret@host:abc", "the port must be a number from 1 to 65535", 2),
        ("redis://host/shop", "the database must be a number, not 'shop'", 2),
        ("redis://host?namspace=x", "did you mean namespace?", 2),
        ("redis://127.0.0.1:1", "no server listens there", 5),
    ],
)
def test_a_bad_url_is_explained(shop: Shop, url: str, message: str, code: int) -> None:
    result = shop.type("--url", url, "ls")

    assert result.exit_code == code
    assert message in result.stderr
    assert "secret" not in result.output


def test_a_server_that_evicts_is_refused(shop: Shop, redis_server: RedisServer) -> None:
    redis_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    result = shop.type("--url", redis_server.url, "start", "shop.add.v1", "a:=1", "b:=2")

    assert result.exit_code == 2
    assert "CONFIG SET maxmemory-policy noeviction" in result.stderr
    assert redis_server.ask("DBSIZE") == 0


def test_an_import_creates_the_namespace(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    source = Shop(tmp_path / "file")
    source.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")
    runs = tmp_path / "runs.jsonl"
    runs.write_text(source.type("export").stdout)

    assert shop.type("import", str(runs)).exit_code == 0
    assert [run["key"] for run in shop.read("ls")] == ["sum"]
