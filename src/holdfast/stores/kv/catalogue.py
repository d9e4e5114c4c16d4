"""The catalogue: dead letters, schedules, workers and origins of imports, each in a partition or field of its own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.model import DeadLetter, Schedule, WorkerRecord
from holdfast.core.transfer import Origin
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import Fields, Size
from holdfast.stores.kv.workspace import Workspace

encode = msgspec.json.encode
decode_letter = msgspec.json.Decoder(DeadLetter).decode
decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_worker = msgspec.json.Decoder(WorkerRecord).decode
_decode_origin = msgspec.json.Decoder(Origin).decode

VALUE = "value"


def letter_member(letter: DeadLetter) -> str:
    """Return the member of a dead letter in the index: its number and its topic, if it has one."""
    return names.number_text(letter.number) + ("" if letter.topic is None else f" {letter.topic}")


class KvDeadLetters:
    """Dead letters, by number."""

    def __init__(self, space: Workspace) -> None:
        self._space = space

    def add(self, letter: DeadLetter) -> None:
        numbered = replace(letter, number=self._space.next_number(names.LETTER_NUMBERS))
        self._space.put(names.letter(numbered.number), {VALUE: encode(numbered)})
        self._space.add(names.LETTERS, letter_member(numbered))

    def get(self, number: int) -> DeadLetter | None:
        value = self._space.field(names.letter(number), VALUE)
        return None if value is None else decode_letter(value)

    def remove(self, number: int) -> bool:
        letter = self.get(number)
        if letter is not None:
            self._space.clear(names.letter(number))
            self._space.remove(names.LETTERS, letter_member(letter))
        return letter is not None


def due_member(schedule: Schedule) -> str | None:
    """Return the member of a schedule in the index of due times; None if it has none."""
    return None if schedule.next_at is None else names.time_text(schedule.next_at) + schedule.name


class KvSchedules:
    """Schedules, by name."""

    def __init__(self, space: Workspace) -> None:
        self._space = space

    def get(self, name: str) -> Schedule | None:
        value = self._space.field(names.schedule(name), VALUE)
        return None if value is None else decode_schedule(value)

    def put(self, schedule: Schedule) -> None:
        self._forget_due(self.get(schedule.name))
        self._space.put(names.schedule(schedule.name), {VALUE: encode(schedule)})
        self._space.add(names.SCHEDULES, schedule.name)
        if (member := due_member(schedule)) is not None:
            self._space.add(names.DUE_SCHEDULES, member)

    def remove(self, name: str) -> bool:
        schedule = self.get(name)
        if schedule is not None:
            self._forget_due(schedule)
            self._space.clear(names.schedule(name))
            self._space.remove(names.SCHEDULES, name)
        return schedule is not None

    def _forget_due(self, schedule: Schedule | None) -> None:
        if schedule is not None and (member := due_member(schedule)) is not None:
            self._space.remove(names.DUE_SCHEDULES, member)


def worker_value(record: bytes, started_at: Micros, heartbeat_at: Micros) -> bytes:
    """Return a worker as it is stored: two times, and the record without them."""
    return b"%d %d " % (started_at, heartbeat_at) + record


def worker_of(value: bytes) -> WorkerRecord:
    started_at, heartbeat_at, record = value.split(b" ", 2)
    return replace(_decode_worker(record), started_at=int(started_at), heartbeat_at=int(heartbeat_at))


class KvWorkers:
    """Live workers, by id."""

    def __init__(self, space: Workspace) -> None:
        self._space = space

    def beat(self, worker: WorkerRecord, now: Micros) -> None:
        known = self._space.field(names.WORKERS, worker.id)
        started_at = now if known is None else worker_of(known).started_at
        self._space.put(names.WORKERS, {worker.id: worker_value(encode(worker), started_at, now)})

    def remove(self, worker_id: str) -> None:
        self._space.drop(names.WORKERS, [worker_id])
        self.forget_idle([worker_id])

    def forget_idle(self, worker_ids: Sequence[str]) -> None:
        """Remove workers that hold no run from the index of holders. A claim adds its worker again."""
        sizes = [Size(names.held_by(worker_id)) for worker_id in worker_ids]
        # The versions, loaded together with the sizes, tell if a worker has claimed a run since.
        self._space.expect([*sizes, *(Fields(names.leases_by(worker_id), ()) for worker_id in worker_ids)])
        for worker_id, size in zip(worker_ids, sizes, strict=True):
            if self._space.ask(size) == 0:
                self._space.remove(names.HOLDERS, worker_id)


class KvOrigins:
    """Progress of imports from other stores, by the id of the export."""

    def __init__(self, space: Workspace) -> None:
        self._space = space

    def get(self, export_id: str) -> Origin | None:
        value = self._space.field(names.origin(export_id), VALUE)
        return None if value is None else _decode_origin(value)

    def put(self, export_id: str, origin: Origin) -> None:
        self._space.put(names.origin(export_id), {VALUE: encode(origin)})
