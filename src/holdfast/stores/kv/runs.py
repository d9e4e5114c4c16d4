"""Runs, their waits and their families, as fields of partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import Fence, Run, RunOptions, Wait, WaitKind
from holdfast.core.wire import reason_of
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import AllFields, Fields, Log, Range, Read
from holdfast.stores.kv.names import (
    changed_fields,
    entries_of,
    entry_changes,
    fields_of,
    is_catalogue,
    is_live_child,
    lasting_entries_of,
    run_of,
)
from holdfast.stores.kv.workspace import Stale, Workspace
from holdfast.stores.operations.unit_of_work import OddRow

HEAD = (names.BODY, names.MOVING, names.READY, names.WAITS)
"""The fields of a run that operations read, all but the payload."""

FAILURES = (ValueError, TypeError, KeyError, RecursionError)
"""Errors of decoders for a run that cannot be read."""


def head_of(run_id: str) -> Fields:
    """Return the read of a run without its payload."""
    return Fields(names.head(run_id), HEAD)


def reads_to_close(run_id: str) -> list[Read]:
    """Return the reads for a run that may be cancelled or end."""
    return [
        head_of(run_id),
        Fields(names.history(run_id), ()),
        names.all_undo(run_id),
        Fields(names.children(run_id), ()),
        names.all_children(run_id),
    ]


class KvPart:
    """One noun of the store, as an operation reads and writes it on a workspace."""

    def __init__(self, space: Workspace) -> None:
        self._space = space


class KvRuns:
    """Runs, by id and by key. Writes are collected, and written once for each run (`flush`)."""

    def __init__(self, space: Workspace, token_base: int = 0) -> None:
        self._space = space
        self._base = token_base
        self._runs: dict[str, Run | None] = {}
        self._origins: dict[str, Run | None] = {}
        self._keys: dict[str, str | None] = {}
        self._new_children: dict[str, list[str]] = {}

    def get(self, run_id: str) -> Run | None:
        if run_id not in self._runs:
            head = names.head(run_id)
            if self._space.known.is_absent(head):
                self._runs[run_id] = self._origins[run_id] = None
                return None
            self._space.expect([head_of(run_id)])
            found = {name: self._space.known.field(head, name) for name in HEAD}
            fields = {name: value for name, value in found.items() if value is not None}
            self._runs[run_id] = self._origins[run_id] = _decoded(run_id, fields) if fields else None
        return self._runs[run_id]

    def whole(self, run_id: str) -> Run | None:
        run, origin = self.get(run_id), self._origins[run_id]
        if run is None or run.payload or origin is None:
            return run
        payload = (self._space.field(names.head(run_id), names.PAYLOAD) or b"").decode()
        self._origins[run_id] = whole = replace(origin, payload=payload)
        self._runs[run_id] = run = whole if run is origin else replace(run, payload=payload)
        return run

    def options(self, run: Run) -> RunOptions:
        return run.options

    def put(self, run: Run) -> None:
        before = self.get(run.id)
        if before is not None and run.token > before.token:
            run = self._fenced(run)
        self._runs[run.id] = run

    def raised(self, run: Run) -> Run:
        """Return a run that is about to be claimed, with a token that is not below those of all earlier epochs.

        Only a first claim gets the first token of an epoch (`claim_order.rank_before`).
        """
        least = self._base if run.token == 0 else self._base + 1
        return run if not self._base or run.token >= least else replace(run, token=least)

    def _fenced(self, run: Run) -> Run:
        """Return a run with a token that no earlier epoch has handed out."""
        return run if run.token > self._base else replace(run, token=self._base + run.token)

    def add(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._origins[run.id] = None
            self._runs[run.id] = self._fenced(run) if run.token > 0 else run
            if run.key is not None:
                self._keys[run.key] = run.id
            if run.parent_id is not None and is_live_child(run):
                self._new_children.setdefault(run.parent_id, []).append(run.id)

    def existing(self, run_ids: Sequence[str]) -> set[str]:
        self._space.expect(head_of(run_id) for run_id in run_ids if run_id not in self._runs)
        return {run_id for run_id in run_ids if self.get(run_id) is not None}

    def expect(self, run_ids: Collection[str], *, with_histories: bool = False) -> None:
        unread = [run_id for run_id in run_ids if run_id not in self._runs]
        reads: list[Read] = [read for run_id in unread for read in (head_of(run_id), payload_of(run_id))]
        if with_histories:
            for run_id in run_ids:
                reads += [AllFields(names.history(run_id)), Log(names.audit(run_id))]
        self._space.expect(reads)

    def with_key(self, key: str) -> str | None:
        if key not in self._keys:
            found = self._space.field(names.key(key), "id")
            self._keys[key] = None if found is None else found.decode()
        return self._keys[key]

    def holding(self, keys: Sequence[str]) -> dict[str, Run]:
        self._space.expect(Fields(names.key(key), ("id",)) for key in keys if key not in self._keys)
        holders = {key: run_id for key in keys if (run_id := self.with_key(key)) is not None}
        self.expect(list(holders.values()))
        runs = {key: self.whole(run_id) for key, run_id in holders.items()}
        return {key: run for key, run in runs.items() if run is not None}

    def set_key(self, run: Run, key: str | None) -> None:
        before = self.get(run.id)
        assert before is not None, "the caller has read this run"
        if key is not None:
            self._keys[key] = run.id
        elif before.key is not None:
            self._keys[before.key] = None
        self._runs[run.id] = replace(before, key=key)

    def fences(self, run_ids: Sequence[str]) -> Mapping[str, Run | Fence]:
        self._space.expect(head_of(run_id) for run_id in run_ids)
        return {run_id: run for run_id in run_ids if (run := self.get(run_id)) is not None}

    def prolong(self, run_ids: Sequence[str], until: Micros) -> None:
        for run_id in run_ids:
            if (run := self.get(run_id)) is not None:
                self.put(replace(run, ready_at=until))

    def publish(self, run_id: str, values: Mapping[str, str]) -> None:
        if values:
            self._space.put(names.values(run_id), {name: value.encode() for name, value in values.items()})

    def is_new(self, run_id: str) -> bool:
        """Return True if a run was added in this unit of work."""
        return run_id in self._runs and self._origins[run_id] is None and self._runs[run_id] is not None

    def new_children(self, parent_id: str) -> list[str]:
        """Return the ids of the children of a run that were added in this unit of work."""
        return [run_id for run_id in self._new_children.get(parent_id, ()) if self.is_new(run_id)]

    def known(self) -> Iterable[Run]:
        """Return the runs that were read or written here, as they are now."""
        return [run for run in self._runs.values() if run is not None]

    def forget(self, run: Run) -> None:
        """Remove a run, all its index entries and everything that belongs to it."""
        space = self._space
        origin = self._origins.get(run.id) or run
        for index, member, _ in entries_of(origin):
            if not is_catalogue(index):
                space.remove(index, member)
        for index, member, _ in lasting_entries_of(origin):
            space.remove(index, member)
        if origin.key is not None:
            self._keys[origin.key] = None
        for name in names.all_of(run.id):
            space.clear(name)
        self._runs[run.id] = self._origins[run.id] = None

    # Writing

    def flush(self) -> None:
        """Write the changed runs, with their index entries and keys."""
        for run_id, after in self._runs.items():
            before = self._origins[run_id]
            if after is None or after is before:
                continue
            if before is None:
                self._write_new(after)
            elif after != before:
                self._write_changed(before, after)
        for key, holder in self._keys.items():
            self._write_key(key, holder)

    def _write_key(self, key: str, holder: str | None) -> None:
        name = names.key(key)
        known = self._space.known.field(name, "id") if self._space.known.has(Fields(name, ("id",))) else None
        if holder is None:
            if known is not None or not self._space.known.has(Fields(name, ("id",))):
                self._space.clear(name)
        elif known is None or known.decode() != holder:
            self._space.put(name, {"id": holder.encode()})

    def _write_new(self, run: Run) -> None:
        space = self._space
        space.put(names.head(run.id), fields_of(run))
        space.add_all(lasting_entries_of(run))
        space.add_all(entries_of(run))
        if run.parent_id is not None and is_live_child(run):
            space.put(names.children(run.parent_id), {})
        self._note_lease(run)

    def _write_changed(self, before: Run, after: Run) -> None:
        space = self._space
        head = names.head(after.id)
        puts, drops = changed_fields(before, after)
        space.put(head, puts)
        if drops:
            space.drop(head, drops)
        removes, adds = entry_changes(before, after)
        for index, members in removes.items():
            for member in members:
                space.remove(index, member)
        space.add_all((index, member, score) for index, scores in adds.items() for member, score in scores.items())
        if after.parent_id is not None and is_live_child(after) and not is_live_child(before):
            space.put(names.children(after.parent_id), {})
        if after.token != before.token:
            self._note_lease(after)

    def _note_lease(self, run: Run) -> None:
        if run.worker is not None:
            self._space.touch(names.leases(run.type))
            self._space.touch(names.leases_by(run.worker))


def payload_of(run_id: str) -> Fields:
    """Return the read of a run's payload."""
    return Fields(names.head(run_id), (names.PAYLOAD,))


def _decoded(run_id: str, fields: Mapping[str, bytes]) -> Run:
    with decoding(run_id, "run"):
        return run_of(fields)


class OddRun(OddRow):
    """A run of which something cannot be decoded."""

    def __init__(self, run_id: str, what: str, why: str) -> None:
        super().__init__(f"{what} {run_id} cannot be read: {why}")
        self.run_id = run_id


@contextmanager
def decoding(run_id: str, what: str) -> Iterator[None]:
    """Raise `OddRun` for something of a run that cannot be decoded."""
    try:
        yield
    except OddRow:
        raise
    except FAILURES as error:
        raise OddRun(run_id, what, reason_of(error)) from error


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
        for place in before:  # the name of a queue for a key goes when no run is left in it
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
        """Yield the waits for a topic, longest first. Only as many runs are loaded as the caller reads."""
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


class KvFamilies:
    """Children, by their parent."""

    def __init__(self, space: Workspace, runs: KvRuns, waits: KvWaits) -> None:
        self._space = space
        self._runs = runs
        self._waits = waits

    def _ids(self, parent_id: str) -> list[str]:
        members = self._space.range(names.all_children(parent_id), names.children(parent_id))
        loaded = [member[names.TIME_DIGITS :] for member in members]
        return list(dict.fromkeys([*loaded, *self._runs.new_children(parent_id)]))

    def _live(self, parent_id: str) -> list[Run]:
        ids = self._ids(parent_id)
        self._space.expect(head_of(run_id) for run_id in ids if not self._runs.is_new(run_id))
        runs = map(self._runs.get, ids)
        return [run for run in runs if run is not None and not run.state.is_end]

    def to_cancel(self, parent_id: str) -> Sequence[str]:
        ids = self._ids(parent_id)
        # Read all that a cancel of each child needs in one round, for all children of a level.
        self._space.expect(read for run_id in ids if not self._runs.is_new(run_id) for read in reads_to_close(run_id))
        return [run.id for run in self._live(parent_id) if run.on_close == "cancel"]

    def detach(self, parent_id: str) -> None:
        for child in self._live(parent_id):
            self._runs.put(replace(child, parent_location=None))

    def parked(self, parent_id: str) -> Sequence[str]:
        return [child.id for child in self._live(parent_id) if rules.is_parked(self._waits.of(child.id))]

    def seated(self, parent_id: str | None, group: str | None) -> int:
        siblings = [child for child in self._live(parent_id or "") if child.group == group]
        return sum(not rules.is_parked(self._waits.of(child.id)) for child in siblings)
