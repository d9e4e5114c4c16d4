"""What the settings of a Redis server mean, and which findings they give."""

from __future__ import annotations

from typing import Any

import pytest
from hiredis import Reader

from holdfast.core.errors import InvalidRequest
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.errors import ServerError
from holdfast.stores.redis.server import ServerSettings, findings, inspection, parsed_info, refuse_unsafe

ADDRESS = RedisAddress.of("redis://db")
SAFE = {
    "maxmemory-policy": "noeviction",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "min-replicas-to-write": "0",
}


def _settings(config: dict[str, str], info: str = "redis_version:7.2.4") -> ServerSettings:
    """Return the settings of a server that answers CONFIG GET only for these names."""
    asking = inspection(parsed_info(info.encode()))
    replies: list[Any] = []
    for command in next(asking):
        reader = Reader()
        reader.feed(command)
        name = reader.gets()[2].decode()
        replies.append([name.encode(), config[name].encode()] if name in config else ServerError("NOPERM no"))
    with pytest.raises(StopIteration) as end:
        asking.send(replies)
    settings: ServerSettings = end.value.value
    return settings


def test_a_safe_server_loses_nothing() -> None:
    settings = _settings(SAFE)

    assert (settings.loss, settings.is_volatile) == ("", False)
    refuse_unsafe(ADDRESS, settings)


@pytest.mark.parametrize(
    ("config", "info", "told"),
    [
        ({"appendfsync": "everysec"}, "", "loses about the last second"),
        ({"appendfsync": "no"}, "", "loses up to half a minute"),
        ({"appendonly": "no", "save": "60 1"}, "", "a crash loses all writes since the last one"),
        ({"appendonly": "no"}, "", "every restart loses all runs"),
        ({}, "\r\nconnected_slaves:1", "a failover loses the last writes; min-replicas-to-write limits how many"),
        ({"min-replicas-to-write": "1"}, "\r\nconnected_slaves:1", "(min-replicas-to-write is 1)"),
    ],
)
def test_what_a_server_loses_is_said(config: dict[str, str], info: str, told: str) -> None:
    assert told in _settings(SAFE | config, f"redis_version:7.2.4{info}").loss


@pytest.mark.parametrize(
    ("config", "info", "told"),
    [
        ({}, "redis_version:6.0.16", "the store needs Redis 6.2 or newer, or Valkey"),
        ({}, "redis_version:7.2.4\r\ncluster_enabled:1", "is in cluster mode"),
        ({"maxmemory-policy": "volatile-lru"}, "redis_version:7.2.4", "CONFIG SET maxmemory-policy noeviction"),
        ({"appendonly": "no"}, "redis_version:7.2.4", "add ?allow_volatile=1"),
    ],
)
def test_an_unsafe_server_is_refused(config: dict[str, str], info: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unsafe(ADDRESS, _settings(SAFE | config, info))

    assert told in str(caught.value)


def test_old_numbers_of_valkey_are_not_those_of_redis() -> None:
    settings = _settings(SAFE, "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2")

    refuse_unsafe(ADDRESS, settings)
    assert settings.shown_version == "Valkey 9.1.2"


def test_info_has_some_settings_if_config_is_forbidden() -> None:
    told = "redis_version:7.2.4\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0"

    settings = _settings({}, told)

    assert (settings.policy, settings.is_appending, settings.save, settings.is_volatile) == (
        "allkeys-lru",
        False,
        None,
        None,
    )
    with pytest.raises(InvalidRequest, match="maxmemory-policy"):
        refuse_unsafe(ADDRESS, settings)


def test_unknown_settings_are_not_refused() -> None:
    settings = _settings({}, "")

    refuse_unsafe(ADDRESS, settings)
    assert (settings.version, settings.shown_version) == (None, "unknown")


def _levels(settings: ServerSettings, info: str = "", lines: tuple[bytes, ...] = ()) -> dict[str, str]:
    found = findings(ADDRESS, settings, parsed_info(info.encode()), lines)
    return {finding.subject: finding.level for finding in found}


def test_findings_about_settings() -> None:
    unsafe = _settings(SAFE | {"appendonly": "no", "maxmemory-policy": "allkeys-random"}, "redis_version:5.0.1")

    named = "run_id:5f2b"
    assert _levels(_settings(SAFE), named) == dict.fromkeys(("server", "eviction", "durability", "epochs"), "ok")
    assert _levels(unsafe, named) == dict.fromkeys(("server", "eviction", "durability"), "problem") | {"epochs": "ok"}


@pytest.mark.parametrize("info", ["", "redis_version:7.2.4\r\nrun_id:0000"])
def test_a_server_that_hides_its_run_id_is_a_finding(info: str) -> None:
    (found,) = [one for one in findings(ADDRESS, _settings(SAFE), parsed_info(info.encode()), ()) if one.level != "ok"]

    assert (found.subject, found.level) == ("identity", "warning")
    assert "run: ACL SETUSER default +info" in found.text


def test_findings_about_memory_and_connections() -> None:
    few = "used_memory:100\r\nmaxmemory:1000\r\nconnected_clients:1\r\nmaxclients:10"
    many = "used_memory:900\r\nmaxmemory:1000\r\nconnected_clients:9\r\nmaxclients:10"

    assert [_levels(_settings(SAFE), few)[subject] for subject in ("memory", "connections")] == ["ok", "ok"]
    assert [_levels(_settings(SAFE), many)[subject] for subject in ("memory", "connections")] == ["warning", "warning"]


def test_findings_about_epochs_say_what_was_lost() -> None:
    line = b'{"at":1800000000000000,"from":1,"to":2,"released":3,"version":9,"lost":%d}'

    (kept,) = [one for one in findings(ADDRESS, _settings(SAFE), {}, [line % 0]) if one.subject == "epochs"]
    (lost,) = [one for one in findings(ADDRESS, _settings(SAFE), {}, [line % 4]) if one.subject == "epochs"]

    assert (kept.level, lost.level) == ("ok", "warning")
    assert "2027-01-15 08:00:00 UTC: 3 leases were released" in kept.text
    assert "at least 4 confirmed writes were lost" in lost.text
    assert _levels(_settings(SAFE), lines=(b"nonsense",))["epochs"] == "ok"
