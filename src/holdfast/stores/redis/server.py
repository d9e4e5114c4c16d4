"""The server: the handshake with it, its settings, what it can lose, and findings about it for `holdfast doctor`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core.clock import moment
from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.core.ports import Finding
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.connections import Conversation, packed
from holdfast.stores.redis.epochs import EpochLine, decode_line, identity_advice, run_id_of
from holdfast.stores.redis.errors import ServerError

CLIENT_NAME = "holdfast"
"""The name of our connections in CLIENT LIST."""

Info = dict[str, str]


def handshake(address: RedisAddress) -> Conversation[Info]:
    """Log in, and return what the server says about itself: nothing, if this user may not ask.

    Raises:
        StoreUnavailable: The server is a replica.

    """
    required = []
    if address.password:
        account = (address.user, address.password) if address.user else (address.password,)
        required.append(packed("AUTH", *account))
    if address.database:
        required.append(packed("SELECT", address.database))
    required.append(packed("PING"))
    replies = yield [*required, packed("CLIENT", "SETNAME", CLIENT_NAME), packed("INFO")]
    for reply in replies[: len(required)]:
        if isinstance(reply, ServerError):
            raise reply
    known = parsed_info(replies[-1])
    # Also one that accepts writes: it would forget them.
    if known.get("role", "master") != "master":
        raise StoreUnavailable(
            f"{address.shown} is a replica, which cannot be written; name the primary, or wait until the failover is "
            "over"
        )
    return known


def parsed_info(reply: bytes | ServerError) -> Info:
    """Return the fields of an INFO reply: none if this user may not ask."""
    if isinstance(reply, ServerError):
        return {}
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines() if not line.startswith("#"))
    return {name: value for name, mark, value in lines if mark}


# Settings


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
            return "does not show how it keeps data on disk, so it is unknown what a crash loses"
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
    """Ask for the settings of a server. `info` is what it said in the handshake."""
    replies = yield [packed("CONFIG", "GET", name) for name in _ASKED]
    config = {name: value for name, reply in zip(_ASKED, replies, strict=True) if (value := _value(reply)) is not None}
    policy = config.get("maxmemory-policy", info.get("maxmemory_policy"))
    appending = config.get("appendonly", {"1": "yes", "0": "no"}.get(info.get("aof_enabled", "")))
    minimum = config.get("min-replicas-to-write")
    return ServerSettings(
        product="Valkey" if "valkey_version" in info else "Redis",
        version=_version_in(info),
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
    # Valkey also says which version of Redis it is compatible with, but is newer than 6.2 in any case.
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


def _version_in(info: Info) -> tuple[int, ...] | None:
    text = info.get("valkey_version") or info.get("redis_version") or ""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else None


# Findings


FULL_SHARE = 0.8
_MEBIBYTE = 1 << 20
_NAMED = 3
"""Maximum number of epochs that are named, the newest last."""


def findings(
    address: RedisAddress, settings: ServerSettings, info: Info, epoch_lines: Sequence[bytes]
) -> Iterator[Finding]:
    """Yield the findings about a server."""
    yield _version(settings)
    if not run_id_of(info):
        yield Finding.warning("identity", f"the server {identity_advice(address)}")
    yield _eviction(settings)
    yield _durability(address, settings)
    if settings.replicas:
        minimum = "unknown" if settings.min_replicas is None else settings.min_replicas
        yield Finding.ok("replication", f"{settings.replicas} replicas; min-replicas-to-write is {minimum}")
    yield from _memory(info)
    yield from _clients(info)
    yield from _epochs(epoch_lines)


def _version(settings: ServerSettings) -> Finding:
    if settings.version is None:
        return Finding.warning("server", "it does not show its version: this user may not call INFO")
    if settings.product == "Redis" and settings.version < OLDEST_VERSION:
        return Finding.problem("server", f"{settings.shown_version} is too old: the store needs Redis 6.2, or Valkey")
    if settings.is_cluster:
        return Finding.problem("server", f"{settings.shown_version} is in cluster mode, which is not supported yet")
    return Finding.ok("server", settings.shown_version)


def _eviction(settings: ServerSettings) -> Finding:
    if settings.policy is None:
        return Finding.warning("eviction", f"maxmemory-policy is unknown: make sure that it is {POLICY}")
    if settings.policy != POLICY:
        return Finding.problem(
            "eviction",
            f"maxmemory-policy is {settings.policy}: a full server removes runs; "
            f"run: CONFIG SET maxmemory-policy {POLICY}",
        )
    return Finding.ok("eviction", f"maxmemory-policy is {POLICY}")


def _durability(address: RedisAddress, settings: ServerSettings) -> Finding:
    if not settings.loss:
        return Finding.ok("durability", "the append-only file is written before each answer (appendfsync always)")
    text = f"the server {settings.loss}"
    if settings.is_volatile and not address.may_be_volatile:
        return Finding.problem("durability", f"{text}; run: CONFIG SET appendonly yes")
    return Finding.warning("durability", text)


def _memory(info: Info) -> Iterator[Finding]:
    used, most = int(info.get("used_memory", "0")), int(info.get("maxmemory", "0"))
    if not used:
        return
    text = f"{used / _MEBIBYTE:,.1f} MiB are in use"
    if not most:
        yield Finding.ok("memory", f"{text}; maxmemory is not set")
    elif used > FULL_SHARE * most:
        yield Finding.warning(
            "memory",
            f"{text} of {most / _MEBIBYTE:,.1f}: a full server refuses to write; raise maxmemory, or keep runs for a "
            "shorter time (retention)",
        )
    else:
        yield Finding.ok("memory", f"{text} of {most / _MEBIBYTE:,.1f}")


def _clients(info: Info) -> Iterator[Finding]:
    if "connected_clients" not in info:
        return
    used, most = int(info["connected_clients"]), int(info.get("maxclients", "0"))
    text = f"{used} of {most} connections are in use" if most else f"{used} connections are in use"
    if most and used > FULL_SHARE * most:
        yield Finding.warning("connections", f"{text}; raise maxclients, or use fewer processes")
    else:
        yield Finding.ok("connections", text)


def _epochs(lines: Sequence[bytes]) -> Iterator[Finding]:
    known: list[EpochLine] = []
    for line in lines:
        try:
            known.append(decode_line(line))
        except msgspec.MsgspecError:
            yield Finding.warning("epochs", f"a line of the log of epochs cannot be read: {line[:100]!r}")
    if not known:
        yield Finding.ok("epochs", "the server was never restarted or replaced")
    for epoch in known[-_NAMED:]:
        at = f"{moment(epoch.at):%Y-%m-%d %H:%M:%S} UTC"
        text = f"the server was restarted or replaced, or the store was migrated, at {at}: "
        text += f"{epoch.released:,} {'lease was' if epoch.released == 1 else 'leases were'} released"
        if not epoch.version:
            yield Finding.warning("epochs", f"the namespace was emptied before {at}: all runs of that time are gone")
        elif epoch.lost:
            yield Finding.warning("epochs", f"{text}, and at least {epoch.lost:,} confirmed writes were lost")
        else:
            yield Finding.ok("epochs", f"{text}; no client missed a confirmed write")
