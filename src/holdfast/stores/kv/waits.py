"""The waits of runs, and the places of the runs in the queues for slots and for events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.core import rules
from holdfast.core.model import Run, Wait, WaitKind
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import Range
from holdfast.stores.kv.runs import KvRuns, decoding, head_of
from holdfast.stores.kv.workspace import Stale, Workspace

encode = msgspec.json.encode
_decode = msgspec.json.Decoder(tuple[Wait, ...]).decode

WAITING_AT_ONCE = 32
"""Number of waiting runs of a queue that are loaded at first."""


class WaitPlace(msgspec.Struct, frozen=True):
    """The place of a wait in an index, and the partition that guards the index."""

    index: str
    member: str
    guard: str
    key_queues: str = ""
    """The index of the queues for the keys of a type, if this is one of them."""


def waits_of(value: bytes | None) -> tuple[Wait, ...]:
    return () if value is None else _decode(value)


def places_of(run: Run, waits: Iterable[Wait]) -> Iterator[WaitPlace]:
    """Yield the places that the waits of a run have in queues."""
    for wait in waits:
        if wait.kind is WaitKind.SLOT:
            queue = wait.names[0]
            member = f"{names.level_text(wait.after)}{names.time_text(wait.since)}{run.id}"
            is_limit = wait.location == rules.LIMIT_LOCATION
            yield WaitPlace(
                names.queue_index(queue), member, names.queue(queue), names.key_queues(run.type) if is_limit else ""
            )
        elif wait.kind is WaitKind.EVENT:
            topic = wait.names[0]
            member = f"{names.time_text(wait.since)}{run.id}"
            yield WaitPlace(names.waiters_index(topic), member, names.waiters(topic))


_LEVEL_DIGITS = len(names.level_text(0))
_PLACE_DIGITS = _LEVEL_DIGITS + names.TIME_DIGITS


class KvWaits:
    """The waits of runs. They are written once for each run (`flush`)."""

    def __init__(self, space: Workspace, runs: KvRuns) -> None:
        self._space = space
        self._runs = runs
        self._waits: dict[str, tuple[Wait, ...]] = {}

    def of(self, run_id: str) -> Sequence[Wait]:
        if run_id in self._waits:
            return self._waits[run_id]
        return () if self._runs.is_new(run_id) else self._stored(run_id)

    def _stored(self, run_id: str) -> tuple[Wait, ...]:
        self._space.expect([head_of(run_id)])
        with decoding(run_id, "the waits of run"):
            return waits_of(self._space.known.field(names.head(run_id), names.WAITS))

    def put(self, run_id: str, waits: Sequence[Wait]) -> None:
        """Replace the waits of a run. Its places in queues change at once, so that later reads see them."""
        run = self._runs.get(run_id)
        assert run is not None, "the caller has read this run"
        before, after = set(places_of(run, self.of(run_id))), list(places_of(run, waits))
        self._waits[run_id] = tuple(waits)
        for place in before - set(after):
            self._space.remove(place.index, place.member)
            self._space.touch(place.guard)
        for place in after:
            if place not in before:
                self._space.add(place.index, place.member)
                self._space.touch(place.guard)
                if place.key_queues:
                    self._space.add(place.key_queues, place.guard)
        for place in before:
            self._forget_empty_queue(place)

    def _forget_empty_queue(self, place: WaitPlace) -> None:
        """Remove the name of a queue for a key in which no run is left."""
        if place.key_queues and not self._space.range(Range(place.index, limit=1), place.guard):
            self._space.remove(place.key_queues, place.guard)

    def first(self, queue: str, location: str) -> str | None:
        return next(self._in_queue(queue, Range(names.queue_index(queue), limit=1)), None)

    def first_at(self, queue: str, level: int) -> str | None:
        low = names.level_text(level)
        read = Range(names.queue_index(queue), low, names.level_text(level + 1), limit=1)
        return next(self._in_queue(queue, read), None)

    def _in_queue(self, queue: str, read: Range) -> Iterator[str]:
        members = self._space.range(read, names.queue(queue))
        run_ids = [member[_PLACE_DIGITS:] for member in members]
        self._space.expect(head_of(run_id) for run_id in run_ids if not self._runs.is_new(run_id))
        for member, run_id in zip(members, run_ids, strict=True):
            run = self._runs.get(run_id)
            places = () if run is None else places_of(run, self.of(run_id))
            if all((place.index, place.member) != (read.index, member) for place in places):
                raise Stale(names.queue(queue))  # the run has left the queue between two loads
            yield run_id

    def parked_in(self, queue: str) -> list[str]:
        """Return all runs that wait in a queue."""
        return list(self._in_queue(queue, Range(names.queue_index(queue))))

    def for_event(self, topic: str) -> Iterable[tuple[str, Sequence[Wait]]]:
        members = self._space.range(Range(names.waiters_index(topic)), names.waiters(topic))
        run_ids = list(dict.fromkeys(member[names.TIME_DIGITS :] for member in members))
        self._space.expect(head_of(run_id) for run_id in run_ids if not self._runs.is_new(run_id))
        return [(run_id, waits) for run_id in run_ids if (waits := self._for_event(run_id, topic))]

    def _for_event(self, run_id: str, topic: str) -> list[Wait]:
        return [wait for wait in self.of(run_id) if wait.kind is WaitKind.EVENT and wait.names == (topic,)]

    def in_line(self, topic: str) -> Iterator[tuple[str, Wait]]:
        """Yield the waits for a topic, longest first. Only as many runs are loaded as the caller looks at."""
        index, guard = names.waiters_index(topic), names.waiters(topic)
        count, seen = WAITING_AT_ONCE, 0
        while True:
            members = self._space.range(Range(index, limit=count), guard)
            run_ids = [member[names.TIME_DIGITS :] for member in members]
            self._space.expect(head_of(run_id) for run_id in run_ids if not self._runs.is_new(run_id))
            for member in members[seen:]:
                since = int(member[: names.TIME_DIGITS], 16)
                run_id = member[names.TIME_DIGITS :]
                for wait in self._for_event(run_id, topic):
                    if max(wait.since, 0) == since:
                        yield run_id, wait
            if len(members) < count:
                return
            count, seen = count * 8, len(members)

    def flush(self) -> None:
        """Write the changed waits."""
        for run_id, waits in self._waits.items():
            if self._runs.get(run_id) is None:
                continue
            head = names.head(run_id)
            if not self._runs.is_new(run_id) and waits == self._stored(run_id):
                continue
            if waits:
                self._space.put(head, {names.WAITS: encode(waits)})
            elif not self._runs.is_new(run_id):
                self._space.drop(head, [names.WAITS])
