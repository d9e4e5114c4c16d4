"""The settings of a server: what it can lose, and whether the store may use it at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import InvalidRequest
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.conversation import Conversation, packed
from holdfast.stores.redis.errors import ServerError
from holdfast.stores.redis.handshake import Info

OLDEST_VERSION = (6, 2)
POLICY = "noeviction"

_ASKED = ("maxmemory-policy", "appendonly", "appendfsync", "save", "min-replicas-to-write")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings that matter. None means unknown, because this user may not ask for it."""

    product: str
    version: tuple[int, ...] | None
    policy: str | None
    is_cluster: bool
    is_appending: bool | None
    appendfsync: str | None
    save: str | None
    replicas: int
    min_replicas: int | None

    @property
    def shown_version(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}" if self.version is not None else "unknown"

    @property
    def is_volatile(self) -> bool | None:
        """True if the server keeps nothing on disk. None if that is unknown."""
        if self.is_appending:
            return False
        if self.is_appending is None or self.save is None:
            return None
        return not self.save

    @property
    def loss(self) -> str:
        """The possible loss, in words. Empty if the server loses nothing that it has confirmed."""
        texts = [text for text in (self._crash_loss, self._failover_loss) if text]
        return "; ".join(texts)

    @property
    def _crash_loss(self) -> str:
        if self.is_volatile:
            return "keeps data in memory only: every restart loses all runs"
        if self.is_appending is False:
            return f"saves snapshots only (save {self.save!r}): a crash loses all writes since the last one"
        if self.is_appending is None or self.appendfsync is None:
            return "does not tell how it keeps data on disk, so it is unknown what a crash loses"
        if self.appendfsync == "always":
            return ""
        when = "about the last second" if self.appendfsync == "everysec" else "up to half a minute"
        return f"keeps an append-only file with appendfsync {self.appendfsync}: a crash of the machine loses {when}"

    @property
    def _failover_loss(self) -> str:
        if not self.replicas:
            return ""
        if self.min_replicas:
            limit = f"(min-replicas-to-write is {self.min_replicas})"
            return f"replicates asynchronously: a failover loses the last writes {limit}"
        return "replicates asynchronously: a failover loses the last writes; min-replicas-to-write limits how many"


def inspection(info: Info) -> Conversation[ServerSettings]:
    """Ask for the settings of a server. `info` is what it told in the handshake."""
    replies = yield [packed("CONFIG", "GET", name) for name in _ASKED]
    config = {name: value for name, reply in zip(_ASKED, replies, strict=True) if (value := _value(reply)) is not None}
    policy = config.get("maxmemory-policy", info.get("maxmemory_policy"))
    appending = config.get("appendonly", {"1": "yes", "0": "no"}.get(info.get("aof_enabled", "")))
    minimum = config.get("min-replicas-to-write")
    return ServerSettings(
        product="Valkey" if "valkey_version" in info else "Redis",
        version=_version(info),
        policy=policy,
        is_cluster=info.get("cluster_enabled") == "1" or info.get("redis_mode", info.get("server_mode")) == "cluster",
        is_appending=None if appending is None else appending == "yes",
        appendfsync=config.get("appendfsync"),
        save=config.get("save"),
        replicas=int(info.get("connected_slaves", "0")),
        min_replicas=None if minimum is None else int(minimum),
    )


def refuse_unsafe(address: RedisAddress, settings: ServerSettings) -> None:
    """Refuse a server that cannot keep what the store promises.

    Raises:
        InvalidRequest: The message says which setting to change, and how.

    """
    if advice := unsafe(address, settings):
        raise InvalidRequest(advice)


def unsafe(address: RedisAddress, settings: ServerSettings) -> str:
    """Return why a server cannot keep what the store promises, and what to change; empty if it can."""
    # Valkey also tells which version of Redis it is compatible with, but is newer than 6.2 in any case.
    if settings.product == "Redis" and settings.version is not None and settings.version < OLDEST_VERSION:
        wanted = ".".join(map(str, OLDEST_VERSION))
        return f"{address.shown} is {settings.shown_version}; the store needs Redis {wanted} or newer, or Valkey"
    if settings.is_cluster:
        return (
            f"{address.shown} is in cluster mode, which this store does not support yet; use a server without cluster "
            "mode, with a replica if it should survive the loss of a machine"
        )
    if settings.policy not in (POLICY, None):
        return (
            f"{address.shown} may remove any run when its memory is full (maxmemory-policy is {settings.policy}); "
            f"run: CONFIG SET maxmemory-policy {POLICY} - and set it in the server's configuration"
        )
    if settings.is_volatile and not address.may_be_volatile:
        return (
            f"{address.shown} keeps data in memory only, so a restart loses all runs; run: CONFIG SET appendonly yes - "
            "and set it in the server's configuration; or, if you can do without the runs, add ?allow_volatile=1 to "
            "the URL"
        )
    return ""


def unknown_settings(settings: ServerSettings) -> list[str]:
    """Return the names of the settings that this user may not ask for."""
    known = {
        "maxmemory-policy": settings.policy,
        "appendonly": settings.is_appending,
        "appendfsync": settings.appendfsync,
        "save": settings.save,
    }
    return [name for name, value in known.items() if value is None]


def _value(reply: Any) -> str | None:
    """Return the value of a CONFIG GET reply; None if it was refused, or the server does not know the name."""
    if isinstance(reply, ServerError) or len(reply) != 2:
        return None
    text: str = reply[1].decode(errors="replace")
    return text


def _version(info: Info) -> tuple[int, ...] | None:
    text = info.get("valkey_version") or info.get("redis_version") or ""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else None
