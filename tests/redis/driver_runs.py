"""Runs for tests of the Redis driver: written as the key-value store writes them, and read back with their indexes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.clock import Micros
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import AllFields, Fields, Log, Part, Partition
from holdfast.stores.kv.names import entries_of, fields_of, is_catalogue, run_of
from holdfast.stores.redis import RedisDriver
from holdfast.testing.contract import START
from tests.redis.cleaning import connect, namespace_of

Entries = set[tuple[str, str, int]]
"""Index, member and score."""


def a_run(run_id: str, *, ready_at: Micros | None = START, **fields: Any) -> Run:
    """Return a run of the type `order`, which is due unless the fields tell otherwise."""
    known: dict[str, Any] = {
        "type": "order",
        "state": RunState.PENDING,
        "payload": "{}",
        "created_at": START,
        "start_at": START,
        "updated_at": START,
    }
    return Run(id=run_id, ready_at=ready_at, **{**known, **fields})


def a_held_run(run_id: str, worker: str = "w1", *, token: int = 1, **fields: Any) -> Run:
    return a_run(run_id, **{"state": RunState.RUNNING, "worker": worker, "claim_id": "c", "token": token, **fields})


async def place(driver: RedisDriver, runs: Iterable[Run]) -> None:
    """Write runs with all their index entries."""
    for run in runs:
        adds: dict[str, dict[str, int]] = {}
        for index, member, score in entries_of(run):
            adds.setdefault(index, {})[member] = score
        part = Part(checks={names.head(run.id): 0}, puts={names.head(run.id): fields_of(run)}, adds=adds)
        assert (await driver.commit([part])).refused == [None]


async def read_run(driver: RedisDriver, run_id: str) -> tuple[Run, int]:
    """Return a run and the version of its head."""
    (head,) = (await driver.load([AllFields(names.head(run_id))])).answers
    assert isinstance(head, Partition)
    return run_of(head.fields), head.version


async def read_version(driver: RedisDriver, partition: str) -> int:
    (found,) = (await driver.load([Fields(partition, ())])).answers
    assert isinstance(found, Partition)
    return found.version


async def read_lines(driver: RedisDriver, log: str) -> list[bytes]:
    (lines,) = (await driver.load([Log(log)])).answers
    assert isinstance(lines, list)
    return lines


async def set_rules(driver: RedisDriver, rules: Mapping[str, bytes]) -> None:
    """Disable types (`off`), or say that they have limits (`limited`)."""
    await driver.commit([Part(puts={names.RULED: dict(rules)})])


@dataclass
class RedisIndexes:
    """All indexes of a namespace, as the server has them."""

    entries: Entries = field(default_factory=set)
    names: Entries = field(default_factory=set)
    """Entries of catalogues, which may have names that nobody uses any more."""


def read_indexes(url: str) -> RedisIndexes:
    """Read all indexes of the namespace of a URL."""
    found = RedisIndexes()
    prefix = f"{{{namespace_of(url)}}}:"
    with connect(url) as client:
        for key in client.scan_iter(match="*", count=1000, _type="ZSET"):
            name = key.decode()
            if name.startswith(prefix):
                index = name.removeprefix(prefix)
                members: Any = client.zrange(name, 0, -1, withscores=True)
                into = found.names if is_catalogue(index) else found.entries
                into.update((index, member.decode(), int(score)) for member, score in members)
    return found


def entries_of_all(runs: Iterable[Run]) -> RedisIndexes:
    """Return the indexes that the store would write for these runs."""
    expected = RedisIndexes()
    for run in runs:
        for entry in entries_of(run):
            (expected.names if is_catalogue(entry[0]) else expected.entries).add(entry)
    return expected


def lanes_and_types(entries: Entries) -> Entries:
    """Return the entries of the catalogues that a claim reads."""
    return {entry for entry in entries if entry[0].startswith("L:") or entry[0] == names.LANED_TYPES}
