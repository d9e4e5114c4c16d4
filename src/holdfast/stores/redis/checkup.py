"""The check-up: findings about the server and the namespace, for `holdfast doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.core.clock import moment
from holdfast.core.ports import Finding
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.epochs import EpochLine, decode_line
from holdfast.stores.redis.handshake import Info
from holdfast.stores.redis.identity import identity_advice, run_id_of
from holdfast.stores.redis.settings import OLDEST_VERSION, POLICY, ServerSettings

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
    yield from _replication(settings)
    yield from _memory(info)
    yield from _clients(info)
    yield from _epochs(epoch_lines)


def _version(settings: ServerSettings) -> Finding:
    if settings.version is None:
        return Finding.warning("server", "it does not tell its version: this user may not call INFO")
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


def _replication(settings: ServerSettings) -> Iterator[Finding]:
    if settings.replicas:
        minimum = "unknown" if settings.min_replicas is None else settings.min_replicas
        yield Finding.ok("replication", f"{settings.replicas} replicas; min-replicas-to-write is {minimum}")


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
    for told in known[-_NAMED:]:
        at = f"{moment(told.at):%Y-%m-%d %H:%M:%S} UTC"
        text = f"the server was restarted or replaced, or the store was migrated, at {at}: "
        text += f"{told.released:,} {'lease was' if told.released == 1 else 'leases were'} released"
        if not told.version:
            yield Finding.warning("epochs", f"the namespace was emptied before {at}: all runs of that time are gone")
        elif told.lost:
            yield Finding.warning("epochs", f"{text}, and at least {told.lost:,} confirmed writes were lost")
        else:
            yield Finding.ok("epochs", f"{text}; no client missed a confirmed write")
