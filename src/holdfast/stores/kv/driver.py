"""The driver: what a key-value engine has to do for the key-value store. It stores and finds; it decides nothing.

An engine keeps three kinds of things, each under a name:

- A *partition* is a set of fields with a version. A write to a partition gives it a new version. An operation that
  decided on a partition is committed only if the partition still has the version that was loaded.
- An *index* is a set of members with a score each, ordered by score and then by the bytes of the member.
- A *log* is a list of lines. Lines are added at its end.

A commit is a list of independent parts. Each part is written wholly, if all its checks hold, or not at all. So one call
writes the checkpoints of many runs.

`holdfast.stores.kv.dictionary` is the shortest driver, `holdfast.stores.redis` the first for a server.
`docs/key-value-stores.md` describes how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import Micros
from holdfast.core.model import Holding
from holdfast.core.ports import Finding
from holdfast.core.verbs import StopRequest

# Reads


class Fields(msgspec.Struct, frozen=True, gc=False):
    """Some fields of a partition. The answer is a `Partition` with those that exist."""

    partition: str
    fields: tuple[str, ...]


class AllFields(msgspec.Struct, frozen=True, gc=False):
    """All fields of a partition, or those whose names do not begin with `without`. The answer is a `Partition`."""

    partition: str
    without: str = ""

    def leaves_out(self, field: str) -> bool:
        return bool(self.without) and field.startswith(self.without)


EVERYTHING = 1_000_000
"""The limit of a read that has none."""


class Range(msgspec.Struct, frozen=True, gc=False):
    """Members of an index whose scores are all 0: from `low` (inclusive) to `high` (exclusive), by their bytes.

    An empty `high` means no bound. The answer is a list of members, in reverse order if `is_reverse`.
    """

    index: str
    low: str = ""
    high: str = ""
    limit: int = EVERYTHING
    is_reverse: bool = False


class Lowest(msgspec.Struct, frozen=True, gc=False):
    """The first members of an index by score, then by bytes. The answer is a list of `(member, score)`.

    With `is_due`, only members whose score is not above the driver's time.
    """

    index: str
    limit: int
    is_due: bool = False


class Size(msgspec.Struct, frozen=True, gc=False):
    """The number of members of an index; with `is_due`, of those whose score is not above the driver's time."""

    index: str
    is_due: bool = False


class Log(msgspec.Struct, frozen=True, gc=False):
    """The lines of a log, oldest first. The answer is a list of bytes."""

    log: str


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """Numbers of a counter that no other call gets. The answer is a range of `count` numbers, above all earlier ones.

    With a `count` of 0, the answer is the empty range after the last number in use.
    """

    counter: str
    count: int


Read = Fields | AllFields | Range | Lowest | Size | Log | Reserve


class Partition(NamedTuple):
    """A partition as it was loaded. A partition that does not exist has the version 0 and no fields."""

    version: int
    fields: dict[str, bytes]


class Answers(NamedTuple):
    """The answers to reads, in order, all of one instant, and the driver's time at that instant."""

    now: Micros
    answers: list[object]


# Writes


NOTHING: Mapping[str, Any] = MappingProxyType({})

MARK_MICROS: Micros = 50_000
"""Minimum time for which a mark keeps other writers from a partition."""


class Part(msgspec.Struct, frozen=True, gc=False):
    """Writes that belong together. They are applied in the order of the fields here, if all checks hold.

    `checks` are versions of partitions; 0 means that the partition must not exist. Each partition in `puts` or `drops`
    gets a new version, also if there are no fields to write. `touches` are partitions that never have fields and serve
    only to detect changes; their versions may be forgotten after `TOUCH_MICROS`, so that they need not be cleaned up.
    `clears` removes all fields of a partition with its version, all members of an index or all lines of a log. `cuts`
    removes lines from logs by their content. A part that is refused because of `checks` writes nothing.

    `marks` are partitions that only the writer `owner` may change for a short time: parts of others that check one of
    them are refused until then. All marks are set, or the part is refused because another writer has one of them. A
    mark ends when its owner has written, at the latest after `mark_micros`. A part with marks writes nothing else.

    No part removes or clears what another part of the same commit adds. So a driver may write an index once for all.
    """

    checks: Mapping[str, int] = NOTHING
    clears: Sequence[str] = ()
    puts: Mapping[str, Mapping[str, bytes]] = NOTHING
    drops: Mapping[str, Sequence[str]] = NOTHING
    touches: Sequence[str] = ()
    removes: Mapping[str, Sequence[str]] = NOTHING
    adds: Mapping[str, Mapping[str, int]] = NOTHING
    cuts: Mapping[str, Sequence[bytes]] = NOTHING
    appends: Mapping[str, Sequence[bytes]] = NOTHING
    marks: Sequence[str] = ()
    mark_micros: Micros = MARK_MICROS
    owner: str = ""

    def as_part(self) -> Part:
        return self


class Gain(msgspec.Struct, frozen=True, gc=False):
    """A part that has two checks, and only writes fields of the second partition. Almost all parts are like this.

    A driver may write it like every other part (`as_part`), or in a quicker way.
    """

    guard: str
    guard_version: int
    partition: str
    version: int
    fields: Mapping[str, bytes]

    def as_part(self) -> Part:
        checks = {self.guard: self.guard_version, self.partition: self.version}
        return Part(checks, puts={self.partition: self.fields})


TOUCH_MICROS: Micros = 3_600_000_000
"""Time for which the version of a touched partition is kept. No operation lasts longer from its load to its commit."""


class Committed(NamedTuple):
    """The result of a commit.

    `version` is what every partition that was written has now. `refused` has one item per part: None if it was
    written, or the name of a partition whose check failed or that another writer has marked. `is_repeat`: the call was
    repeated because an answer was lost, so what is refused may have been written by the first attempt.
    """

    now: Micros
    version: int
    refused: list[str | None]
    is_repeat: bool = False


# Claims and leases


class ClaimedRun(NamedTuple):
    """A run that a claim has leased, as it is stored after the claim."""

    id: str
    head: Partition
    history: Partition
    inbox: dict[str, bytes]


class ClaimAnswer(NamedTuple):
    """The answer to a claim.

    `limited` are the types with limits of which a run is due. If there are any, the driver has leased nothing, and the
    shared operations decide. `odd` are due runs that the driver cannot read. They have left the queue, and the store
    blocks them.
    """

    now: Micros
    runs: list[ClaimedRun]
    next_ready_at: Micros | None
    limited: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()


class Renewed(NamedTuple):
    """The answer about a holding that is still held.

    `arrivals` is the number of the last arrival. `newer` are the arrivals with numbers above the holding's `seen`, as
    they are stored, in the order of their numbers.
    """

    arrivals: int
    stop: StopRequest | None = None
    newer: tuple[bytes, ...] = ()


class Driver(Protocol):
    """A key-value engine. All calls may be repeated after a lost answer, but a claim only with `is_repeat`."""

    @property
    def epoch(self) -> int:
        """A number that changes when all leases have become void, because the engine may have lost writes.

        Versions and leases that were loaded under another number are invalid.
        """
        ...

    async def open(self) -> None:
        """Connect. Raises `StoreUnavailable`, or a refusal if the engine cannot keep what the store promises."""
        ...

    async def close(self) -> None: ...

    async def begin_epoch(self) -> None:
        """Change the epoch for all drivers of this data, and end all leases if the engine has a way to do it.

        A migration does this to stop workers of an older number: each store reads the number again.
        """
        ...

    def peek(self, partition: str, fields: Sequence[str]) -> dict[str, bytes]:
        """Return those fields that exist. Blocking; the driver need not be open, and nothing is written."""
        ...

    async def load(self, reads: Sequence[Read]) -> Answers:
        """Answer reads, all from one snapshot."""
        ...

    async def commit(self, parts: Sequence[Part | Gain], hint: bytes = b"") -> Committed:
        """Write each part whose checks hold. Send the hint to all listeners if at least one part was written."""
        ...

    async def claim(self, request: ClaimRequest) -> ClaimAnswer | None:
        """Lease due runs by `core.claim_order`, or return None: then the shared operations do it by loads and commits.

        An engine has this call to save trips and conflicts, not to decide differently.
        """
        ...

    def renew(
        self, worker: str, record: bytes, holdings: Sequence[Holding], lease: Micros
    ) -> tuple[Micros, list[Renewed | None]]:
        """Extend the leases that are still held, and record the heartbeat. Blocking, and called from another thread.

        A renewal changes the ready time of a run but not the version of its partition, so it never makes a checkpoint
        conflict. Without a worker (`""`) nothing is written, and the answer says what a renewal would say.
        """
        ...

    def listen(self, on_hint: Callable[[bytes], None]) -> Callable[[], None]:
        """Call `on_hint` on the running event loop for each hint, from this process or another one, until stopped.

        An empty hint means that hints may have been missed, for example while there was no connection.
        """
        ...

    async def check(self) -> Sequence[Finding]:
        """Check the engine's settings: what they can lose, and what does not fit."""
        ...
