"""A decision: load what an operation needs, let it decide, and commit. After a conflict, do it again.

Operations take no locks. Of two operations that change the same partition, the second one starts over. An operation
that keeps losing leaves a mark, and the others leave it the partition for a short time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.core.clock import SECOND, Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import new_id
from holdfast.core.news import News
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import MARK_MICROS, AllFields, Committed, Driver, Fields, Gain, Part, Read
from holdfast.stores.kv.foresight import Follow, closing
from holdfast.stores.kv.unit_of_work import KvUnit
from holdfast.stores.kv.workspace import KnownPartitions, Stale, Workspace
from holdfast.stores.workspace.decision import Missing, rounds

A = TypeVar("A")

Operation = Callable[[KvUnit, Micros], A]

ROUNDS_LIMIT = 10_000
"""Maximum number of loads of one attempt. Each one loads more, so reaching it is a bug. A chain of runs needs many."""
MARK_AFTER = 4
"""Number of conflicts after which an operation leaves a mark."""
MARK_FACTOR = 4
"""A mark lasts this many times as long as the slowest attempt of its owner took.

If marks ended before their owners write, two slow operations would keep each other out for ever.
"""
LONGEST_MARK_MICROS: Micros = 2 * SECOND
"""Maximum length of a mark, because its owner may have died."""
CONFLICTS_LIMIT = 200
"""Number of conflicts after which an operation gives up."""
LARGE = 1_000
"""Number of partitions from which an operation runs in a thread."""
READS_AT_ONCE = 1_000
"""Maximum number of reads in one load, because the event loop is busy with each of them for some microseconds."""
FIRST_PAUSE_SECONDS = 0.0005
LAST_PAUSE_SECONDS = 0.02

SELDOM_WRITTEN = frozenset({names.META, names.RULED, names.TOPICS})
"""Partitions that almost every operation reads. A mark on one of them would stop all operations."""

_BASE = Fields(names.META, ("base",))


@dataclass(frozen=True, slots=True)
class Decided(Generic[A]):
    """The answer of an operation, its news, and what was committed (None if nothing was to be written)."""

    answer: A
    news: News
    space: Workspace
    committed: Committed | None

    def version(self, partition: str) -> int:
        """Return the version that a partition has after the operation."""
        if self.committed is None:
            return self.space.known.versions.get(partition, 0)
        return self.space.version_after(partition, self.committed.version)


@dataclass(slots=True)
class _Race:
    """The attempts of an operation so far: its conflicts, the last partition that it lost, and if an answer was lost.

    `slowest` is the time of its slowest attempt, from the first load to the refusal.
    """

    conflicts: int = 0
    slowest: Micros = 0
    lost: str | None = None
    owner: str = ""
    is_repeat: bool = False


class Decisions:
    """Executes operations on a driver. `wake_all` is called if the news of a commit may have been lost."""

    def __init__(self, driver: Driver, encode_hint: Callable[[News], bytes], wake_all: Callable[[], None]) -> None:
        self._driver = driver
        self._encode_hint = encode_hint
        self._wake_all = wake_all

    async def decide(
        self,
        operation: Operation[A],
        reads: Sequence[Read] = (),
        *,
        assumed: KnownPartitions | None = None,
        follow: Follow = closing,
        is_dry_run: bool = False,
    ) -> Decided[A]:
        """Let an operation decide, and write its changes.

        `reads` are what it is known to need. `assumed` is what its data probably is, so that the first attempt needs no
        load: the commit checks it. `follow` tells what to load after something was loaded.
        """
        race = _Race()
        if assumed is not None:
            decided = await self._decide_once(operation, assumed, follow, race, is_dry_run=is_dry_run)
            if decided is not None:
                return decided  # otherwise the assumption was wrong, which is no conflict
        first: list[Read] = list(dict.fromkeys((_BASE, *reads)))
        while True:
            known = KnownPartitions()
            try:
                await self._load(known, first, follow)
            except Stale as stale:  # it changed between two loads
                race.lost = str(stale)
            else:
                decided = await self._decide_once(operation, known, follow, race, is_dry_run=is_dry_run)
                if decided is not None:
                    return decided
            await self._wait(race, known)
            # In one trip, if they are few, so that the next attempt is quicker than the changes of others.
            first = list(dict.fromkeys((*first, *known.reads)))

    async def _decide_once(
        self, operation: Operation[A], known: KnownPartitions, follow: Follow, race: _Race, *, is_dry_run: bool
    ) -> Decided[A] | None:
        """Decide and commit once. Return None after a conflict."""
        try:
            unit, answer = await self._attempt(operation, known, follow, race)
        except Stale as stale:
            race.lost = str(stale)
            return None
        space = unit.space
        if is_dry_run:
            return Decided(answer, unit.news, space, None)
        if not space.is_changed():
            race.lost = await self._changed(known, race.owner)
            return None if race.lost else Decided(answer, unit.news, space, None)
        committed = await self.commit([space.part(race.owner)], unit.news)
        if committed.refused[0] is None:
            return Decided(answer, unit.news, space, committed)
        race.lost = committed.refused[0]
        race.slowest = max(race.slowest, committed.now - space.now)
        race.is_repeat = race.is_repeat or committed.is_repeat
        return None

    async def commit(self, parts: Sequence[Part | Gain], news: News) -> Committed:
        """Write parts, and send their news to other processes."""
        try:
            committed = await self._driver.commit(parts, self._encode_hint(news))
        except BaseException:
            self._wake_all()  # it may have been written, and a repetition finds nothing to do, so it has no news
            raise
        if committed.is_repeat and any(committed.refused):
            self._wake_all()  # likewise, for the first attempt of the driver
        return committed

    async def _wait(self, race: _Race, known: KnownPartitions) -> None:
        """Wait a moment after a conflict. After several, keep the others away instead."""
        race.conflicts += 1
        if race.conflicts == CONFLICTS_LIMIT:
            raise StoreUnavailable(
                f"an operation lost the race for {race.lost} {race.conflicts} times and gave up; nothing was written; "
                "try again"
            )
        if race.conflicts >= MARK_AFTER:
            race.owner = race.owner or new_id()
            if await self._mark(known, race):
                return
        longest = min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**race.conflicts)
        await asyncio.sleep(random.uniform(0, longest))  # so that two do not collide again and again

    async def _mark(self, known: KnownPartitions, race: _Race) -> bool:
        """Keep other writers from what an operation has loaded. Return False if another writer was first."""
        contested = [name for name in known.versions if name not in SELDOM_WRITTEN]
        length = min(LONGEST_MARK_MICROS, max(MARK_MICROS, MARK_FACTOR * race.slowest))
        marking = Part(marks=contested, mark_micros=length, owner=race.owner)
        return (await self._driver.commit([marking])).refused[0] is None

    async def _attempt(
        self, operation: Operation[A], known: KnownPartitions, follow: Follow, race: _Race
    ) -> tuple[KvUnit, A]:
        numbers = rounds(ROUNDS_LIMIT)
        while True:
            next(numbers)
            base = int(known.field(names.META, "base") or 0)
            unit = KvUnit(Workspace(known), base, is_repeat=race.is_repeat)
            try:
                if known.size > LARGE:
                    # On the event loop, this would stop all other tasks. Only this task uses the unit of work.
                    answer = await asyncio.to_thread(_carry_out, operation, unit)
                else:
                    answer = _carry_out(operation, unit)
            except Missing as missing:
                await self._load(known, missing.reads, follow)
            except Stale:
                raise
            except Exception as error:
                # Several loads may have seen several instants. If so, the error may be none.
                if (changed := await self._changed(known, race.owner)) is not None:
                    raise Stale(changed) from error
                raise
            else:
                return unit, answer

    async def _changed(self, known: KnownPartitions, owner: str) -> str | None:
        """Return the name of a partition that is not as the operation saw it, if there is one.

        A single load is a snapshot. Several loads saw several instants, and an assumption may be wrong.
        """
        if known.rounds == 1:
            return None
        return (await self._driver.commit([Part(checks=known.versions, owner=owner)])).refused[0]

    async def _load(self, known: KnownPartitions, reads: Sequence[Read], follow: Follow) -> None:
        while reads:
            more: list[Read] = []
            for some in _in_pieces(reads):
                known.add(some, await self._driver.load(some))
                more += follow(known, some)
            reads = list(dict.fromkeys(more))


def _in_pieces(reads: Sequence[Read]) -> list[Sequence[Read]]:
    """Return reads in pieces, one for each load.

    An index has no version: the version of a partition guards it. So partitions come first, and a change between two
    pieces is a conflict.
    """
    if len(reads) <= READS_AT_ONCE:
        return [reads]
    ordered = sorted(reads, key=lambda read: not isinstance(read, Fields | AllFields))
    return [ordered[first : first + READS_AT_ONCE] for first in range(0, len(ordered), READS_AT_ONCE)]


def _carry_out(operation: Operation[A], unit: KvUnit) -> A:
    answer = operation(unit, unit.space.now)
    unit.flush()
    return answer
