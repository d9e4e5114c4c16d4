"""Pruning: find data that is no longer needed by the indexes of ages, and remove it in small commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import DeadLetter, DeadReason, Run
from holdfast.core.ports import Pruned
from holdfast.core.topics import TAKEN_RETENTION, topic_of
from holdfast.stores.kv import names
from holdfast.stores.kv.catalogue import AgedEvent, KvDeadLetters, KvEvents, decode_event
from holdfast.stores.kv.driver import EVERYTHING, Fields, Range, Size
from holdfast.stores.kv.histories import KvHistories, parsed_member
from holdfast.stores.kv.limits import KvTypes
from holdfast.stores.kv.runs import KvRuns, head_of
from holdfast.stores.kv.workspace import Workspace
from holdfast.stores.operations import pruning, types
from holdfast.stores.operations.unit_of_work import OldEvent, OldRun

if TYPE_CHECKING:
    from holdfast.stores.kv.decision import Decisions
    from holdfast.stores.kv.unit_of_work import KvUnit


def _until(at: Micros) -> str:
    """Return the bound of a range with everything up to an instant."""
    return names.time_text(at + 1)


class KvHousekeeping:
    """Data that is no longer needed, oldest first."""

    def __init__(self, space: Workspace, runs: KvRuns, histories: KvHistories, types: KvTypes) -> None:
        self._space = space
        self._runs = runs
        self._histories = histories
        self._types = types
        self._events = KvEvents(space)
        self.first_topic = ""
        """Topic from which events are counted; the topics before it come in another call."""

    # Events

    def expired_events(self, limit: int, now: Micros) -> tuple[Sequence[OldEvent], bool]:
        topics = self._events.topics()
        shortest = min((TAKEN_RETENTION, *(topic.retention for topic in topics.values())))
        read = Range(names.EVENTS, high=_until(now - shortest), limit=EXAMINED_AT_ONCE)
        members = self._space.range(read)
        found: list[OldEvent] = []
        for aged in map(AgedEvent.parsed, members):
            retention = TAKEN_RETENTION if aged.state == "taken" else topic_of(aged.topic, topics).retention
            if aged.state != "handed" and aged.at <= now - retention:
                found.append(OldEvent(aged.number, aged.topic, aged.state))
        self._load(found[:limit])
        return sorted(found)[:limit], len(members) == EXAMINED_AT_ONCE and bool(found)

    def _load(self, events: Sequence[OldEvent]) -> None:
        fields: dict[str, list[str]] = {}
        for event in events:
            fields.setdefault(names.events(event.topic), []).append(str(event.number))
        self._space.expect(Fields(partition, tuple(numbers)) for partition, numbers in fields.items())

    def surplus_events(self, limit: int) -> Sequence[OldEvent]:
        if limit <= 0:
            return []
        found = sorted(self._overflowing())[:limit]
        self._load(found)
        return found

    def _overflowing(self) -> Iterator[OldEvent]:
        """Yield the oldest events of each topic beyond its limit. Open and pending events are counted separately."""
        rules = self._events.topics()
        topics = self._space.range(Range(names.PUBLISHED, self.first_topic, limit=TOPICS_AT_ONCE))
        self._space.expect(Size(names.events_index(topic)) for topic in topics)
        for topic in topics:
            most = topic_of(topic, rules).max_pending
            size = self._space.ask(Size(names.events_index(topic)))
            assert isinstance(size, int)
            if size == 0 and not self._space.whole(names.events(topic)):
                self._space.remove(names.PUBLISHED, topic)
                self._space.clear(names.events(topic))
            if size <= most:
                continue
            guard = names.events(topic)
            for letter, state in (("o", "open"), ("p", "pending")):
                bounds = Range(names.events_index(topic), letter, chr(ord(letter) + 1))
                waiting = self._space.range(bounds, guard)
                for member in waiting[: max(0, len(waiting) - most)]:
                    yield OldEvent(int(member[1:], 16), topic, "open" if state == "open" else "pending")

    def give_up(self, event: OldEvent, reason: DeadReason, now: Micros) -> None:
        value = self._space.field(names.events(event.topic), str(event.number))
        if value is None:
            return
        kept = decode_event(value)
        letter = DeadLetter(number=0, id=kept.id, topic=event.topic, payload=kept.payload, at=now, reason=reason)
        KvDeadLetters(self._space).add(letter)

    # Receipts and replies

    def forget_receipts(self, until: Micros, limit: int) -> int:
        return self._forget(names.RECEIPTS, names.message_ids, names.receipt_field, until, limit)

    def forget_replies(self, until: Micros, limit: int) -> int:
        return self._forget(names.REPLIES, names.replies, str, until, limit)

    def _forget(self, index: str, name: names.Namer, field_of: names.Namer, until: Micros, limit: int) -> int:
        """Remove things of runs by the index of their ages. `name` is their partition, `field_of` the field in it."""
        members = self._space.range(Range(index, high=_until(until), limit=limit))
        old: list[tuple[str, str, str]] = []
        for member in members:
            run_id, message_id = parsed_member(member)
            old.append((member, name(run_id), field_of(message_id)))
        self._space.expect(Fields(partition, (field,)) for _, partition, field in old)
        forgotten = 0
        for member, partition, field in old:
            self._space.remove(index, member)
            if self._space.field(partition, field) is not None:
                self._space.drop(partition, [field])
                forgotten += 1
        return forgotten

    # Runs

    def ended_runs(self, limit: int, usual: Micros, room: int, now: Micros) -> Sequence[OldRun]:
        own = self._space.range(Range(names.PURGE, high=_until(now), limit=limit))
        known = self._space.range(Range(names.STATES))
        types = sorted({name.partition(":")[2] for name in known})
        self._space.expect(Fields(names.type_rule(type), ("rule",)) for type in types)
        kept = {type: self._kept(type, usual) for type in types}
        reads = [Range(names.ended(type), high=_until(now - kept[type]), limit=limit) for type in types]
        self._space.expect(reads)
        by_type = sorted(member for read in reads for member in self._space.range(read))
        run_ids = [member[names.TIME_DIGITS :] for member in (*own, *by_type)][:limit]
        self._space.expect(head_of(run_id) for run_id in run_ids)
        runs = [run for run in map(self._runs.get, run_ids) if run is not None]
        children = [run for run in runs if run.parent_id is not None and run.parent_location is not None]
        self._space.expect(Fields(names.history(run.parent_id or ""), (run.parent_location or "",)) for run in children)
        return [OldRun(run, self._kept(run.type, usual), self._is_kept_for_parent(run)) for run in runs]

    def _kept(self, type: str, usual: Micros) -> Micros:
        """Return the retention of runs of a type."""
        rule = self._types.get(type)
        return usual if rule is None or rule.retention is None else rule.retention

    def _is_kept_for_parent(self, run: Run) -> bool:
        if run.parent_id is None or run.parent_location is None:
            return rules.is_kept_for_parent(None, run)
        return rules.is_kept_for_parent(self._histories.entry(run.parent_id, run.parent_location), run)

    def defer(self, run: Run) -> None:
        self._runs.put(run)

    def remove(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._runs.forget(run)

    def remove_part(self, run: Run, room: int, now: Micros) -> None:
        raise AssertionError("the key-value store counts no rows, so no run is too large")


async def prune(decisions: Decisions, limit: int, retention: Micros, *, is_dry_run: bool) -> Pruned:
    """Remove data that is no longer needed. A dry run only counts it.

    Each kind is removed by a commit of its own, so that a conflict over one does not repeat the others.
    """

    def prune_events(unit: KvUnit, now: Micros) -> Pruned:
        unit.workers.forget_idle(unit.space.range(Range(names.HOLDERS)))
        return pruning.prune_events(unit, limit, now)

    def purge(unit: KvUnit, now: Micros) -> tuple[dict[str, int], bool]:
        return pruning.purge(unit, EVERYTHING if is_dry_run else limit, retention, now)

    def prune_flows(unit: KvUnit, now: Micros) -> int:
        return types.prune_flows(unit, limit, retention, now)

    pruned = (await decisions.decide(prune_events, is_dry_run=is_dry_run)).answer
    runs, has_more = (await decisions.decide(purge, is_dry_run=is_dry_run)).answer
    removed = (await decisions.decide(prune_flows, is_dry_run=is_dry_run)).answer
    has_more = pruned.has_more or ((has_more or removed == limit) and not is_dry_run)
    return replace(pruned, runs=runs, flows=removed, has_more=has_more)


EXAMINED_AT_ONCE = 5_000
"""Maximum number of old events that one call examines. Events of topics with a long retention may be among them."""
TOPICS_AT_ONCE = 1_000
"""Maximum number of topics whose events one call counts."""
