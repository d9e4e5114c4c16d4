"""Limits: the rules of types, and the slots of their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from holdfast.core import limits
from holdfast.core.clock import Micros
from holdfast.core.limits import Window
from holdfast.core.model import Run, TypeRule
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import EVERYTHING, Fields, Lowest, Range
from holdfast.stores.kv.runs import KvPart, KvRuns, KvWaits, head_of
from holdfast.stores.kv.workspace import Workspace

encode = msgspec.json.encode
decode_rule = msgspec.json.Decoder(TypeRule).decode
_decode_window = msgspec.json.Decoder(Window).decode

RULE = "rule"
WINDOW = "window"
USED = "used"
OFF = b"off"
LIMITED = b"limited"


class KvTypes(KvPart):
    """The rules of types, by name."""

    def get(self, type: str) -> TypeRule | None:
        value = self._space.field(names.type_rule(type), RULE)
        return None if value is None else decode_rule(value)

    def put(self, rule: TypeRule) -> None:
        self._space.put(names.type_rule(rule.name), {RULE: encode(rule)})
        self._space.add(names.TYPES, rule.name)
        before = self._space.field(names.RULED, rule.name)
        after = OFF if not rule.is_enabled else LIMITED if rule.is_limited else None  # what a claim has to know
        if after is None and before is not None:
            self._space.drop(names.RULED, [rule.name])
        elif after is not None and before != after:
            self._space.put(names.RULED, {rule.name: after})

    def is_ruled(self, type: str) -> bool:
        return self._space.field(names.RULED, type) is not None


class KvLimits:
    """Slots of limits, by name. A partition for each slot in use has the number of its owners."""

    def __init__(self, space: Workspace, runs: KvRuns, waits: KvWaits, types: KvTypes) -> None:
        self._space = space
        self._runs = runs
        self._waits = waits
        self._types = types
        self.released = 0

    def rule(self, type: str) -> TypeRule | None:
        if self._space.field(names.RULED, type) is None:
            return None
        rule = self._types.get(type)
        return rule if rule is not None and rule.is_limited else None

    def window(self, type: str) -> Window:
        value = self._space.field(names.type_rule(type), WINDOW)
        return Window() if value is None else _decode_window(value)

    def keep_window(self, type: str, window: Window) -> None:
        if window != self.window(type):
            self._space.put(names.type_rule(type), {WINDOW: encode(window)})

    def taken(self, slot: str) -> int:
        return int(self._space.field(names.slot(slot), USED) or 0)

    def counted(self, type: str) -> Sequence[Run]:
        # The version of the leases shows if a claim has leased a run that is not among these.
        kinds = self._space.range(Range(names.lanes(type)), names.leases(type))
        held = [kind for kind in kinds if kind[0] in (names.HELD_LANE, names.SUSPECT_LANE)]
        reads = [Lowest(f"Q:{kind}:{type}", EVERYTHING) for kind in held]
        self._space.expect(reads)
        found = [member for read in reads for member, _ in cast("list[tuple[str, int]]", self._space.ask(read))]
        found += self._space.range(Range(names.slotted(type)))
        run_ids = list(dict.fromkeys(found))
        self._space.expect(head_of(run_id) for run_id in run_ids)
        runs = map(self._runs.get, run_ids)
        return [run for run in runs if run is not None and (run.is_held or run.slots)]

    def key_queues(self, type: str) -> Sequence[str]:
        guards = self._space.range(Range(names.key_queues(type)), names.type_rule(type))
        shared = (limits.type_slot(type), limits.rate_slot(type))
        return sorted({guard.partition(":")[2] for guard in guards} - {*shared})

    def release_all(self, type: str, now: Micros) -> None:
        queues = [limits.type_slot(type), limits.rate_slot(type), *self.key_queues(type)]
        self._space.expect(
            read for queue in queues for read in (Range(names.queue_index(queue)), Fields(names.queue(queue), ()))
        )
        run_ids = [run_id for queue in queues for run_id in self._waits.parked_in(queue)]
        self._space.expect(head_of(run_id) for run_id in run_ids)
        for run_id in run_ids:
            run, waits = self._runs.get(run_id), self._waits.of(run_id)
            if run is not None and (wait := limits.parked_at(waits)) is not None:
                self._runs.put(limits.release(run, wait.since, now))
                self._waits.put(run_id, limits.without(waits))

    def tagged(self, run_id: str) -> Run:
        run = self._runs.get(run_id)
        assert run is not None, "a run that waits for a slot, or has one, exists"
        return run

    def put(self, run: Run) -> None:
        before = self._runs.get(run.id)
        old = () if before is None else before.slots
        for slot in old:
            if slot not in run.slots:
                self._count(slot, -1)
        for slot in run.slots:
            if slot not in old:
                self._count(slot, 1)
        self._runs.put(run)

    def _count(self, slot: str, change: int) -> None:
        used = self.taken(slot) + change
        partition = names.slot(slot)
        if used > 0:
            self._space.put(partition, {USED: b"%d" % used})
            self._space.add(names.SLOTS, slot)
        else:
            self._space.clear(partition)
            self._space.remove(names.SLOTS, slot)
