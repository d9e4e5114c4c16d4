"""Checkpoints: most of a batch are written in one trip, each as an independent part. The operations decide the others.

A part is checked against the versions of the run's head and history that the store remembers. All writes
of others change one of them, so this check also covers the token, the arrivals and a requested pause. The shared
operations decide on a part that is refused, and say why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Checkpoint, Finish, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Entry, Lease, Run, Wait, WaitKind
from holdfast.core.news import News
from holdfast.stores.held import Held, Plain, plain, reached_by
from holdfast.stores.kv import foresight, names
from holdfast.stores.kv.decision import Decisions
from holdfast.stores.kv.driver import AllFields, Fields, Gain, Part, Read, Reserve
from holdfast.stores.kv.histories import aged_member, entry_value, fact_line
from holdfast.stores.kv.names import changed_fields, entry_changes
from holdfast.stores.kv.runs import head_of, places_of, reads_to_close
from holdfast.stores.kv.unit_of_work import KvUnit
from holdfast.stores.operations import checkpoints as model

encode = msgspec.json.encode


class HeldVersions(msgspec.Struct):
    """The memory of a held run, besides the run: the versions of its head and history, its inbox and its entries."""

    head: int
    history: int
    inbox: dict[int, Arrival]
    entries: dict[str, Entry]

    def supersedes(self, entries: Iterable[Entry]) -> bool:
        """Return True if all of these entries may be written, by `rules.supersedes`."""
        known = self.entries
        for entry in entries:
            recorded = known.get(entry.location)
            if recorded is not None and not rules.supersedes(entry, recorded):
                return False
        return True


class HeldRuns(Held):
    """The runs that this store has leased, with their versions."""

    def __init__(self) -> None:
        super().__init__()
        self._versions: dict[str, HeldVersions] = {}

    def keep_lease(self, lease: Lease, waits: tuple[Wait, ...], head: int, history: int) -> None:
        self.keep(replace(lease.run, payload=""), waits)
        inbox = {arrival.number: arrival for arrival in lease.arrivals}
        entries = {entry.location: entry for entry in lease.entries}
        self._versions[lease.run.id] = HeldVersions(head, history, inbox, entries)

    def versions(self, run_id: str) -> HeldVersions | None:
        return self._versions.get(run_id)

    def keep_held(self, run: Run, waits: tuple[Wait, ...], versions: HeldVersions) -> None:
        """Remember a run that a checkpoint left held."""
        self.keep(replace(run, payload="") if run.payload else run, waits)
        self._versions[run.id] = versions

    def forget(self, run_id: str) -> None:
        super().forget(run_id)
        self._versions.pop(run_id, None)

    def clear(self) -> None:
        super().clear()
        self._versions.clear()


class PlainPart(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint that can be written in one trip, and what the store remembers of its run."""

    one: Plain
    held: HeldVersions
    waits_before: tuple[Wait, ...]
    part: Part | Gain
    is_head_written: bool = False

    def remember(self, head: int, history: int) -> None:
        """Keep in mind that the part was written."""
        held, checkpoint = self.held, self.one.checkpoint
        for number in checkpoint.consumed:
            held.inbox.pop(number, None)
        for entry in checkpoint.entries:
            held.entries[entry.location] = entry
        held.head, held.history = head, history

    def verdict(self) -> Verdict:
        """Return the verdict, if the part was written."""
        one = self.one
        run = one.before
        if not one.is_held:
            return Verdict(run_id=run.id, is_held=False, state=one.after.state)
        seen, arrivals = one.checkpoint.seen, run.arrivals
        if arrivals <= seen:
            return Verdict(run_id=run.id, seen=arrivals)
        unread = sorted(number for number in self.held.inbox if number > seen)
        newer = tuple(self.held.inbox[number] for number in unread if number not in one.checkpoint.consumed)
        return Verdict(run_id=run.id, arrivals=newer, seen=arrivals)


def plain_part(one: Plain, held: HeldVersions, waits_before: tuple[Wait, ...], now: Micros) -> PlainPart:
    """Return the part that writes a checkpoint."""
    checkpoint, run_id = one.checkpoint, one.before.id
    entries: dict[str, bytes] = {}
    has_undo = False
    for entry in checkpoint.entries:
        entries[entry.location] = entry_value(entry)
        has_undo = has_undo or entry.has_undo
    is_more = has_undo or checkpoint.consumed or checkpoint.values
    if one.is_held and not is_more and (one.waits or ()) == waits_before:
        # By far the most common case. The history gets a new version even without entries, so that a late repeat of
        # this checkpoint is refused.
        gain = Gain(names.head(run_id), held.head, names.history(run_id), held.history, entries)
        return PlainPart(one, held, waits_before, gain)
    return PlainPart(one, held, waits_before, *_whole_part(one, held, waits_before, entries, now))


def _whole_part(
    one: Plain, held: HeldVersions, waits_before: tuple[Wait, ...], entries: dict[str, bytes], now: Micros
) -> tuple[Part, bool]:
    """Return a part that writes more than the entries of its run, and True if it writes the head of the run."""
    checkpoint, before = one.checkpoint, one.before
    run_id = before.id
    head, history = names.head(run_id), names.history(run_id)
    checks = {head: held.head, history: held.history}
    puts = {history: entries}
    drops: dict[str, list[str]] = {}
    removes: dict[str, Sequence[str]] = {}
    adds: dict[str, dict[str, int]] = {}
    touches: list[str] = []
    appends: dict[str, list[bytes]] = {}
    if not one.is_held:
        puts[head], gone = changed_fields(before, one.after)
        drops |= {head: gone} if gone else {}
        removes, adds = entry_changes(before, one.after)
        if (fact := audit.of_move(before, one.after, now)) is not None:
            appends[names.audit(run_id)] = [fact_line(fact)]
    if undos := {entry.location: 0 for entry in checkpoint.entries if entry.has_undo}:
        adds[names.undo_index(run_id)] = undos
    taken = [held.inbox[number] for number in checkpoint.consumed if number in held.inbox]
    if taken:
        drops[names.inbox(run_id)] = [str(arrival.number) for arrival in taken]
    if ids := [message.ref for message in taken if message.kind is WaitKind.MESSAGE and message.ref is not None]:
        known = names.message_ids(run_id)
        drops[known] = [names.unread_field(id) for id in ids]
        puts[known] = {names.receipt_field(id): b"%d" % now for id in ids}
        adds[names.RECEIPTS] = {aged_member(now, run_id, id): 0 for id in ids}
    if checkpoint.values:
        puts[names.values(run_id)] = {name: value.encode() for name, value in checkpoint.values.items()}
    waits = () if one.ends else one.waits or ()
    if waits != waits_before:
        if waits:
            puts.setdefault(head, {})[names.WAITS] = encode(waits)
        else:
            drops.setdefault(head, []).append(names.WAITS)
        left, touches = _left_queues(before, waits_before, waits)
        removes |= left  # these indexes have waits only
    if one.ends:
        # A run whose children live ends by the general way, which closes them.
        checks[names.children(run_id)] = 0
    part = Part(checks, puts=puts, drops=drops, touches=touches, removes=removes, adds=adds, appends=appends)
    return part, head in puts or head in drops


def _left_queues(run: Run, before: Iterable[Wait], after: Iterable[Wait]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the index entries of waits that a run has ended, and the partitions that guard them."""
    kept = set(places_of(run, after))
    gone = [place for place in places_of(run, before) if place not in kept]
    members: dict[str, list[str]] = {}
    for place in gone:
        members.setdefault(place.index, []).append(place.member)
    return members, [place.guard for place in gone]


class BatchWriter:
    """Writes one batch of checkpoints. `now` is the time as this process knows it."""

    def __init__(self, decisions: Decisions, held: HeldRuns, now: Micros) -> None:
        self._decisions = decisions
        self._held = held
        self._now = now
        self._verdicts: dict[int, Verdict] = {}
        self.news = News()

    async def write(self, batch: Sequence[Checkpoint]) -> Verdicts:
        """Write as many checkpoints as possible in one trip, and the others by the operations."""
        verdicts = self._verdicts
        if plains := self._plains(batch):
            await self._write_plains(plains)
            if len(verdicts) == len(batch):
                return Verdicts(verdicts=tuple(verdicts.values()), now=self._now)
        left = [place for place in range(len(batch)) if place not in verdicts]
        if left:
            decided = await self._decide([batch[place] for place in left])
            verdicts.update(zip(left, decided.verdicts, strict=True))
        return Verdicts(verdicts=tuple(verdicts[place] for place in range(len(batch))), now=self._now)

    def _plains(self, batch: Sequence[Checkpoint]) -> dict[int, PlainPart]:
        found = {place: one for place, checkpoint in enumerate(batch) if (one := self._plain(checkpoint)) is not None}
        if len(found) == len(batch):
            return found
        others = [checkpoint for place, checkpoint in enumerate(batch) if place not in found]
        reached = reached_by(self._held, others)
        return {place: one for place, one in found.items() if one.one.before.id not in reached}

    def _plain(self, checkpoint: Checkpoint) -> PlainPart | None:
        versions = self._held.versions(checkpoint.run_id)
        one = plain(checkpoint, self._held, self._now) if versions is not None else None
        if one is None or versions is None:
            return None
        waits = self._held.waits_now(checkpoint.run_id)
        if waits is None or not versions.supersedes(checkpoint.entries):
            return None
        if (versions.inbox or checkpoint.consumed) and not self._knows_inbox(one, versions):
            return None
        return plain_part(one, versions, waits, self._now)

    def _knows_inbox(self, one: Plain, versions: HeldVersions) -> bool:
        """Return True if the arrivals that a checkpoint concerns are known, and none of them is from a queue."""
        consumed, inbox = one.checkpoint.consumed, versions.inbox
        if not inbox:
            return not consumed
        if any(number not in inbox or inbox[number].is_exclusive for number in consumed):
            return False
        if one.ends or one.checkpoint.waits is not None:
            # The end empties the inbox. Other waits may give an event back to its queue.
            unread = [arrival for number, arrival in inbox.items() if number not in consumed]
            return not (unread if one.ends else [arrival for arrival in unread if arrival.is_exclusive])
        return True

    async def _write_plains(self, plains: dict[int, PlainPart]) -> None:
        parts = list(plains.values())
        news = News()
        for one in parts:
            if not one.one.is_held:
                _note_news(news, one.one, self._now)
        committed = await self._decisions.commit([one.part for one in parts], news)
        self._now = committed.now
        version = committed.version
        for (place, one), refused in zip(plains.items(), committed.refused, strict=True):
            if refused is not None:
                continue  # the operations find out what happened
            self._verdicts[place] = one.verdict()
            plain = one.one
            if plain.is_held:
                one.remember(version if one.is_head_written else one.held.head, version)
                if plain.waits is not one.waits_before:
                    self._held.keep(plain.before, plain.waits)
            else:
                self._held.forget(plain.before.id)
                _note_news(self.news, plain, self._now)

    async def _decide(self, batch: Sequence[Checkpoint]) -> Verdicts:
        """Write checkpoints by the shared operations."""
        kept: list[tuple[Run, tuple[Wait, ...], HeldVersions]] = []

        def operation(unit: KvUnit, now: Micros) -> Verdicts:
            written = model.write(unit, batch, now)
            kept.clear()
            for checkpoint, verdict in zip(batch, written.verdicts, strict=True):
                if verdict.is_held and not verdict.is_lost:
                    unit.space.guard(names.history(verdict.run_id))
                    run = unit.runs.get(verdict.run_id)
                    assert run is not None
                    kept.append((run, tuple(unit.waits.of(run.id)), self._versions_after(unit, run, checkpoint)))
            return written

        reads = [read for checkpoint in batch for read in self._reads(checkpoint)]
        decided = await self._decisions.decide(operation, reads)
        verdicts = decided.answer
        self.news.add(decided.news)
        self._now = verdicts.now
        for run, waits, versions in kept:
            versions.head = decided.version(names.head(run.id))
            versions.history = decided.version(names.history(run.id))
            self._held.keep_held(run, waits, versions)
        still_held = {run.id for run, _, _ in kept}
        for verdict in verdicts.verdicts:
            if verdict.run_id not in still_held:
                self._held.forget(verdict.run_id)
        return verdicts

    def _versions_after(self, unit: KvUnit, run: Run, checkpoint: Checkpoint) -> HeldVersions:
        """Return what is remembered of a held run. Its versions are known only after the commit."""
        # Not what is remembered: the operation may have given an event back to its queue.
        inbox = {one.number: one for one in unit.inboxes.newer(run, 0)}
        before, known = self._held.run(run.id, run.token), self._held.versions(run.id)
        if before is None or known is None:
            return HeldVersions(0, 0, inbox, {entry.location: entry for entry in unit.histories.all(run.id)})
        entries = dict(known.entries)
        for written in checkpoint.entries:
            if (entry := unit.histories.entry(run.id, written.location)) is not None:
                entries[entry.location] = entry
        return HeldVersions(0, 0, inbox, entries)

    def _reads(self, checkpoint: Checkpoint) -> list[Read]:
        """Return what a checkpoint is known to need, so that one load is enough for most."""
        run_id = checkpoint.run_id
        run = self._held.run(run_id, checkpoint.token)
        locations = tuple(entry.location for entry in checkpoint.entries)
        reads: list[Read] = [head_of(run_id), Fields(names.history(run_id), locations)]
        if run is not None and run.arrivals:
            reads.append(AllFields(names.inbox(run_id)))
        for child in checkpoint.children:
            reads += foresight.for_intent(child)
        for message in checkpoint.messages:
            reads += foresight.for_message(message)
        if checkpoint.events:
            reads += [*foresight.for_events(checkpoint.events), Reserve(names.EVENT_NUMBERS, len(checkpoint.events))]
        for child_id in checkpoint.cancels:
            reads += reads_to_close(child_id)
        if any(wait.kind is WaitKind.EVENT for wait in checkpoint.waits or ()):
            reads.append(AllFields(names.TOPICS))
        if isinstance(checkpoint.next, Finish):
            reads += [Fields(names.children(run_id), ()), names.all_children(run_id)]
            if run is not None and run.parent_id is not None:
                reads.append(head_of(run.parent_id))
        return reads


def _note_news(news: News, one: Plain, now: Micros) -> None:
    """Note the news of a run that was released."""
    if one.ends:
        news.ended.add(one.after.id)
    elif one.after.ready_at is not None and one.after.ready_at <= now:
        news.ready.add(one.after.type)
