"""The workspace of one operation: what it has loaded, and what it changes.

A read of something that was not loaded raises `Missing`, as in `stores.workspace`. What is loaded is what the commit
checks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.stores.kv.driver import AllFields, Answers, Fields, Log, Part, Partition, Range, Read, Reserve
from holdfast.stores.workspace.decision import BaseWorkspace, Missing

Numbers = range
"""Numbers of a counter that were reserved. Classes here have a method `range`, so the type has another name."""

MORE = 8
"""Factor by which a range is read again if an operation has used up what was read of it."""


class Stale(Exception):
    """Raised when two loads of one operation saw a partition at different versions. The operation starts afresh."""


class KnownPartitions:
    """The data that the rounds of one operation have loaded."""

    def __init__(self) -> None:
        self.now: Micros = 0
        self.rounds = 0
        self.versions: dict[str, int] = {}
        self._fields: dict[str, dict[str, bytes | None]] = {}
        self._whole: set[str] = set()
        self._parts: set[AllFields] = set()
        self._answers: dict[Read, object] = {}
        self._reads: dict[Read, None] = {}
        self._ranges: dict[tuple[str, str, str, bool], tuple[int, list[str]]] = {}

    @property
    def reads(self) -> list[Read]:
        """Everything that was loaded, for an operation that starts over: it will need about the same."""
        return list(self._reads)

    @property
    def size(self) -> int:
        """The number of partitions that were loaded."""
        return len(self.versions)

    def add(self, reads: Sequence[Read], loaded: Answers) -> None:
        self.rounds += 1
        # The instant of the first load counts: an operation that asks by time must ask for the same in every round.
        self.now = self.now or loaded.now
        self._reads.update(dict.fromkeys(reads))
        for read, answer in zip(reads, loaded.answers, strict=True):
            match read:
                case Fields() | AllFields():
                    self.put(read, cast("Partition", answer))
                case Range():
                    self._ranges[_bounds(read)] = read.limit, cast("list[str]", answer)
                case _:
                    self._answers[read] = answer

    def put(self, read: Fields | AllFields, found: Partition) -> None:
        """Add a partition that was read, or that is assumed to be as given."""
        name = read.partition
        if self.versions.setdefault(name, found.version) != found.version:
            raise Stale(name)
        fields = self._fields.setdefault(name, {})
        if isinstance(read, Fields):
            fields.update(dict.fromkeys(read.fields))
        elif read.without:
            self._parts.add(read)
        else:
            self._whole.add(name)
        fields.update(found.fields)

    def put_absent(self, partition: str) -> None:
        """Add a partition that is assumed not to exist."""
        if self.versions.setdefault(partition, 0):
            raise Stale(partition)
        self._fields.setdefault(partition, {})
        self._whole.add(partition)

    def is_absent(self, partition: str) -> bool:
        """Return True if a partition was wholly read, and had no fields."""
        return partition in self._whole and not self._fields[partition]

    def has(self, read: Read) -> bool:
        """Return True if a read is answered by what is known."""
        match read:
            case Fields():
                known = self._fields.get(read.partition)
                return known is not None and (read.partition in self._whole or all(f in known for f in read.fields))
            case AllFields():
                return read.partition in self._whole or read in self._parts
            case Range():
                kept = self._ranges.get(_bounds(read))
                return kept is not None and (kept[0] >= read.limit or len(kept[1]) < kept[0])
            case _:
                return read in self._answers

    def field(self, partition: str, name: str) -> bytes | None:
        return self._fields[partition].get(name)

    def whole(self, partition: str) -> dict[str, bytes]:
        return {name: value for name, value in self._fields[partition].items() if value is not None}

    def range(self, read: Range) -> tuple[list[str], bool]:
        """Return the members that were read, and True if there are no others."""
        limit, members = self._ranges[_bounds(read)]
        return members, len(members) < limit

    def answer(self, read: Read) -> object:
        return self._answers[read]

    def reserved(self, counter: str) -> list[Numbers]:
        """Return the numbers of a counter that were reserved for this operation, in blocks."""
        blocks = [read for read in self._answers if isinstance(read, Reserve) and read.counter == counter]
        return sorted((cast("Numbers", self._answers[read]) for read in blocks), key=lambda block: block.start)


def _bounds(read: Range) -> tuple[str, str, str, bool]:
    return read.index, read.low, read.high, read.is_reverse


class Workspace(BaseWorkspace[Read]):
    """The loaded data with the changes of one operation on top. Reads see the changes."""

    def __init__(self, known: KnownPartitions) -> None:
        self.known = known
        self._clears: list[str] = []
        self._puts: dict[str, dict[str, bytes]] = {}
        self._drops: dict[str, dict[str, None]] = {}
        self._touches: list[str] = []
        self._removes: dict[str, dict[str, None]] = {}
        self._adds: dict[str, dict[str, int]] = {}
        self._cuts: dict[str, list[bytes]] = {}
        self._appends: dict[str, list[bytes]] = {}
        self._cleared: set[str] = set()
        self._last_numbers: dict[str, int] = {}

    @property
    def now(self) -> Micros:
        return self.known.now

    # Reading

    def is_known(self, read: Read) -> bool:
        if isinstance(read, (Fields, AllFields)) and read.partition in self._cleared:
            return True
        return self.known.has(read)

    def guard(self, partition: str) -> None:
        """Let the commit check the version of a partition."""
        self.expect([Fields(partition, ())])

    def field(self, partition: str, name: str) -> bytes | None:
        put = self._puts.get(partition)
        if put is not None and name in put:
            return put[name]
        if partition in self._cleared or name in self._drops.get(partition, ()):
            return None
        if not self.known.has(read := Fields(partition, (name,))):
            raise Missing([read])
        return self.known.field(partition, name)

    def whole(self, partition: str, without: str = "") -> dict[str, bytes]:
        """Return all fields of a partition, or those whose names do not begin with `without`."""
        read = AllFields(partition, without)
        if partition in self._cleared:
            found = {}
        else:
            self.expect([read])
            found = self.known.whole(partition)
        for name in self._drops.get(partition, ()):
            found.pop(name, None)
        found.update(self._puts.get(partition, {}))
        return {name: value for name, value in found.items() if not read.leaves_out(name)} if without else found

    def range(self, read: Range, guard: str | None = None) -> list[str]:
        """Return members of an index. `guard` is the partition whose version tells if the index has changed."""
        reads: list[Read] = [read] if guard is None else [read, Fields(guard, ())]
        if read.index in self._cleared:
            members: list[str] = []
            is_complete = True
        else:
            self.expect(reads)
            members, is_complete = self.known.range(read)
        removed, added = self._removes.get(read.index, ()), self._adds.get(read.index, {})
        if not removed and not added:
            return members[: read.limit]
        kept = {member for member in members if member not in removed}
        last = members[-1] if members else ""
        for member in added:
            is_inside = member >= read.low and (not read.high or member < read.high)
            is_loaded = is_complete or (member >= last if read.is_reverse else member <= last)
            if is_inside and is_loaded:
                kept.add(member)
        if len(kept) < read.limit and not is_complete:
            raise Missing([replace(read, limit=max(read.limit, len(members)) * MORE)])
        return sorted(kept, reverse=read.is_reverse)[: read.limit]

    def ask(self, read: Read) -> object:
        """Return the answer to a read that no change of an operation concerns."""
        self.expect([read])
        return self.known.answer(read)

    def log(self, log: str) -> list[bytes]:
        lines = [] if log in self._cleared else cast("list[bytes]", self.ask(Log(log)))
        return [*lines, *self._appends.get(log, ())]

    def next_number(self, counter: str) -> int:
        """Return a number of a counter that no other operation gets, higher than those returned before."""
        last = self._last_numbers.get(counter, 0)
        blocks = self.known.reserved(counter)
        for block in blocks:
            number = max(block.start, last + 1)
            if number < block.stop:
                self._last_numbers[counter] = number
                return number
        raise Missing([Reserve(counter, max(1, 4 * max((len(block) for block in blocks), default=0)))])

    def last_number(self, counter: str) -> int:
        """Return the last number of a counter that was in use when it was read first."""
        return cast("Numbers", self.ask(Reserve(counter, 0))).start - 1

    def skip_numbers(self, counter: str, last: int) -> None:
        """Make this and all later operations get higher numbers than this."""
        if (lead := last - self.last_number(counter)) > 0:
            self.expect([Reserve(counter, lead)])
        self._last_numbers[counter] = max(last, self._last_numbers.get(counter, 0))

    # Writing

    def put(self, partition: str, fields: Mapping[str, bytes]) -> None:
        """Write fields, and give the partition a new version."""
        put = self._puts.get(partition)
        if put is None:
            self._puts[partition] = dict(fields)
        else:
            put.update(fields)
        if dropped := self._drops.get(partition):
            for name in fields:
                dropped.pop(name, None)

    def drop(self, partition: str, fields: Collection[str]) -> None:
        """Remove fields, and give the partition a new version."""
        put = self._puts.setdefault(partition, {})
        for name in fields:
            put.pop(name, None)
        self._drops.setdefault(partition, {}).update(dict.fromkeys(fields))

    def touch(self, partition: str) -> None:
        """Give a partition without fields a new version."""
        if partition not in self._touches:
            self._touches.append(partition)

    def clear(self, name: str) -> None:
        """Remove a partition, an index or a log with everything in it."""
        self._cleared.add(name)
        if name not in self._clears:
            self._clears.append(name)
        for writes in (self._puts, self._drops, self._adds, self._removes, self._appends):
            cast("dict[str, object]", writes).pop(name, None)

    def add(self, index: str, member: str, score: int = 0) -> None:
        self.add_all(((index, member, score),))

    def add_all(self, entries: Iterable[tuple[str, str, int]]) -> None:
        """Add entries to indexes: index, member and score of each."""
        adds, removes = self._adds, self._removes
        for index, member, score in entries:
            added = adds.get(index)
            if added is None:
                adds[index] = {member: score}
            else:
                added[member] = score
            if (removed := removes.get(index)) is not None:
                removed.pop(member, None)

    def remove(self, index: str, member: str) -> None:
        self._adds.get(index, {}).pop(member, None)
        self._removes.setdefault(index, {})[member] = None

    def append(self, log: str, line: bytes) -> None:
        self._appends.setdefault(log, []).append(line)

    def cut(self, log: str, line: bytes) -> None:
        self._cuts.setdefault(log, []).append(line)

    # Committing

    def is_changed(self) -> bool:
        return bool(
            self._clears
            or self._puts
            or self._drops
            or self._touches
            or any(self._removes.values())
            or any(self._adds.values())
            or self._cuts
            or self._appends
        )

    def part(self, owner: str = "") -> Part:
        """Return the changes, to be written only if everything that was loaded is still as it was."""
        return Part(
            checks=self.known.versions,
            clears=self._clears,
            puts=self._puts,
            drops={name: list(fields) for name, fields in self._drops.items() if fields},
            touches=self._touches,
            removes={name: list(members) for name, members in self._removes.items() if members},
            adds={name: members for name, members in self._adds.items() if members},
            cuts=self._cuts,
            appends=self._appends,
            owner=owner,
        )

    def version_after(self, partition: str, committed: int) -> int:
        """Return the version of a partition after a commit with the given version."""
        is_written = partition in self._puts or partition in self._drops or partition in self._touches
        return committed if is_written else self.known.versions.get(partition, 0)
