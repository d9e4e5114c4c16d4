"""A driver on dictionaries: the shortest engine below the key-value store, for tests and as an example of a driver.

It keeps nothing after the process ends. Several drivers may share one `Dictionary`, as processes share a server.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import Clock, Micros, SystemClock
from holdfast.core.model import Holding
from holdfast.core.ports import Finding
from holdfast.stores.kv import names
from holdfast.stores.kv.catalogue import worker_of, worker_value
from holdfast.stores.kv.driver import (
    AllFields,
    Answers,
    ClaimAnswer,
    Committed,
    Fields,
    Gain,
    Log,
    Lowest,
    Part,
    Partition,
    Range,
    Read,
    Renewed,
    Reserve,
    Size,
)
from holdfast.stores.kv.names import run_of
from holdfast.stores.loops import Listeners


class OrderedIndex:
    """Members with scores, ordered by score and then by member."""

    def __init__(self) -> None:
        self._scores: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._scores)

    def add(self, member: str, score: int) -> None:
        self.remove(member)
        self._scores[member] = score
        insort(self._order, (score, member))

    def remove(self, member: str) -> None:
        score = self._scores.pop(member, None)
        if score is not None:
            del self._order[bisect_left(self._order, (score, member))]

    def lowest(self, until: Micros | None) -> list[tuple[str, int]]:
        end = len(self._order) if until is None else bisect_left(self._order, (until + 1, ""))
        return [(member, score) for score, member in self._order[:end]]

    def between(self, low: str, high: str) -> list[str]:
        begin = bisect_left(self._order, (0, low))
        end = bisect_left(self._order, (0, high)) if high else len(self._order)
        return [member for _, member in self._order[begin:end]]


@dataclass
class Dictionary:
    """All data of a key-value store, in memory."""

    partitions: dict[str, Partition] = field(default_factory=dict)
    indexes: dict[str, OrderedIndex] = field(default_factory=dict)
    logs: dict[str, list[bytes]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    marks: dict[str, tuple[str, Micros]] = field(default_factory=dict)
    version: int = 0
    epoch: int = 0
    listeners: Listeners[bytes] = field(default_factory=Listeners)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def index(self, name: str) -> OrderedIndex:
        return self.indexes.setdefault(name, OrderedIndex())

    def clear(self, name: str) -> None:
        self.partitions.pop(name, None)
        self.indexes.pop(name, None)
        self.logs.pop(name, None)

    def put(self, name: str, fields: Mapping[str, bytes], drops: Iterable[str]) -> None:
        kept = {**self.partitions.get(name, Partition(0, {})).fields, **fields}
        for dropped in drops:
            kept.pop(dropped, None)
        self.partitions[name] = Partition(self.version, kept)

    def names(self) -> set[str]:
        """Return the names of all partitions with fields, indexes with members and logs with lines."""
        filled = {name for name, partition in self.partitions.items() if partition.fields}
        return filled | {name for name, index in self.indexes.items() if len(index)} | set(self.logs)


class DictionaryDriver:
    """A driver on a dictionary. The caller's clock is the engine's clock."""

    def __init__(self, data: Dictionary | None = None, *, clock: Clock | None = None) -> None:
        self.data = data or Dictionary()
        self._clock: Clock = clock or SystemClock()

    @property
    def epoch(self) -> int:
        return self.data.epoch

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def begin_epoch(self) -> None:
        self.data.epoch += 1

    def peek(self, partition: str, fields: Sequence[str]) -> dict[str, bytes]:
        with self.data.lock:
            known = self.data.partitions.get(partition, Partition(0, {})).fields
            return {field: known[field] for field in fields if field in known}

    async def load(self, reads: Sequence[Read]) -> Answers:
        with self.data.lock:
            now = self._clock.now()
            return Answers(now, [self._answer(read, now) for read in reads])

    def _answer(self, read: Read, now: Micros) -> object:
        data = self.data
        match read:
            case Fields():
                version, fields = data.partitions.get(read.partition, Partition(0, {}))
                return Partition(version, {name: fields[name] for name in read.fields if name in fields})
            case AllFields():
                version, fields = data.partitions.get(read.partition, Partition(0, {}))
                return Partition(version, {name: fields[name] for name in fields if not read.leaves_out(name)})
            case Range():
                found = data.indexes.get(read.index, OrderedIndex()).between(read.low, read.high)
                return (found[::-1] if read.is_reverse else found)[: read.limit]
            case Lowest():
                index = data.indexes.get(read.index, OrderedIndex())
                return index.lowest(now if read.is_due else None)[: read.limit]
            case Size():
                return len(data.indexes.get(read.index, OrderedIndex()).lowest(now if read.is_due else None))
            case Log():
                return list(data.logs.get(read.log, ()))
            case Reserve():
                last = data.counters.get(read.counter, 0)
                if read.count:
                    data.counters[read.counter] = last + read.count
                return range(last + 1, last + 1 + read.count)

    async def commit(self, parts: Sequence[Part | Gain], hint: bytes = b"") -> Committed:
        with self.data.lock:
            now = self._clock.now()
            self.data.version += 1
            refused: list[str | None] = []
            for part in (one.as_part() for one in parts):
                refused.append(self._refused(part, now))
                if refused[-1] is None:
                    self._write(part, now)
            if hint and not all(refused):
                self.data.listeners.send(hint)
            return Committed(now, self.data.version, refused)

    def _refused(self, part: Part, now: Micros) -> str | None:
        for name, version in part.checks.items():
            if self.data.partitions.get(name, Partition(0, {})).version != version:
                return name
            if self._is_marked_by_others(name, part.owner, now):
                return name
        return next((name for name in part.marks if self._is_marked_by_others(name, part.owner, now)), None)

    def _is_marked_by_others(self, name: str, writer: str, now: Micros) -> bool:
        owner, until = self.data.marks.get(name, ("", 0))
        return owner != writer and until > now

    def _write(self, part: Part, now: Micros) -> None:
        data = self.data
        for name in part.clears:
            data.clear(name)
        for name in {*part.puts, *part.drops, *part.touches}:
            data.put(name, part.puts.get(name, {}), part.drops.get(name, ()))
        for name, members in part.removes.items():
            for member in members:
                data.index(name).remove(member)
        for name, scores in part.adds.items():
            for member, score in scores.items():
                data.index(name).add(member, score)
        for name, lines in part.cuts.items():
            data.logs[name] = [line for line in data.logs.get(name, ()) if line not in lines]
        for name, lines in part.appends.items():
            data.logs.setdefault(name, []).extend(lines)
        data.marks |= dict.fromkeys(part.marks, (part.owner, now + part.mark_micros))
        for name in part.checks if part.owner else ():
            data.marks.pop(name, None)  # its owner has written

    async def claim(self, request: ClaimRequest) -> ClaimAnswer | None:
        return None  # nothing is saved by choosing here: there are no trips

    def renew(
        self, worker: str, record: bytes, holdings: Sequence[Holding], lease: Micros
    ) -> tuple[Micros, list[Renewed | None]]:
        with self.data.lock:
            now = self._clock.now()
            if worker:
                self._beat(worker, record, now)
            return now, [self._renewed(holding, now + lease if worker else None) for holding in holdings]

    def _beat(self, worker: str, record: bytes, now: Micros) -> None:
        version, fields = self.data.partitions.get(names.WORKERS, Partition(0, {}))
        known = fields.get(worker)
        started_at = now if known is None else worker_of(known).started_at
        changed = {**fields, worker: worker_value(record, started_at, now)}
        self.data.partitions[names.WORKERS] = Partition(version, changed)

    def _renewed(self, holding: Holding, until: Micros | None) -> Renewed | None:
        partition = self.data.partitions.get(names.head(holding.run_id))
        if partition is None or names.MOVING not in partition.fields:
            return None
        run = run_of(partition.fields)
        if run.token != holding.token or not run.is_held:
            return None
        if until is not None:
            lane = names.lane(names.lane_kind(run) or names.HELD_LANE, run.priority, run.type)
            self.data.indexes[lane].add(run.id, until)
            partition.fields[names.READY] = b"%d" % until
        inbox = self.data.partitions.get(names.inbox(run.id), Partition(0, {})).fields
        newer = (inbox.get(str(number)) for number in range(holding.seen + 1, run.arrivals + 1))
        return Renewed(run.arrivals, run.stop, tuple(value for value in newer if value is not None))

    def listen(self, on_hint: Callable[[bytes], None]) -> Callable[[], None]:
        return self.data.listeners.add(on_hint)

    async def check(self) -> Sequence[Finding]:
        return [Finding.warning("store", "a dictionary keeps nothing after the process ends")]
