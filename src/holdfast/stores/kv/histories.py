"""The data of one run: the entries of its history, its inbox with receipts and replies, and its audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.core import audit, rules
from holdfast.core.clock import Micros
from holdfast.core.location import PEOPLE_PREFIX, is_for_people, is_within
from holdfast.core.model import RECEIPT_RETENTION, Arrival, AuditFact, Entry, Fence, Run, WaitKind
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import Fields
from holdfast.stores.kv.runs import KvPart, KvRuns, decoding
from holdfast.stores.kv.workspace import Workspace
from holdfast.stores.operations.unit_of_work import Taken

encode = msgspec.json.encode
_decode = msgspec.json.Decoder(Entry).decode


class _PositionOfEntry(msgspec.Struct):
    """The position of an entry, without the rest of it."""

    position: int = 0


_decode_position = msgspec.json.Decoder(_PositionOfEntry).decode


def entry_value(entry: Entry) -> bytes:
    """Return an entry as the value of its field: JSON without the location, which is the name of the field."""
    encoded = encode(entry)
    # The location comes first. It cannot contain this text, because a quotation mark in it is escaped.
    return b"{" + encoded[encoded.index(b',"kind":') + 1 :]


def entry_of(location: str, value: bytes) -> Entry:
    return _decode(b'{"location":' + encode(location) + b"," + value[1:])


def history_of(fields: Mapping[str, bytes]) -> tuple[Entry, ...]:
    """Return the entries of a history in the order in which they were settled, unsettled ones last."""
    entries = (entry_of(location, value) for location, value in fields.items())
    return tuple(sorted(entries, key=lambda entry: (not entry.is_settled, entry.position, entry.location)))


def leased_of(fields: Mapping[str, bytes]) -> tuple[Entry, ...]:
    """Return the entries of a history that a lease has, in their order."""
    if not fields:
        return ()
    return history_of({location: value for location, value in fields.items() if not is_for_people(location)})


class KvHistories(KvPart):
    """The entries of runs."""

    def entry(self, run_id: str, location: str) -> Entry | None:
        value = self._space.field(names.history(run_id), location)
        with decoding(run_id, "the history of run"):
            return None if value is None else entry_of(location, value)

    def all(self, run_id: str) -> Sequence[Entry]:
        fields = self._space.whole(names.history(run_id))
        with decoding(run_id, "the history of run"):
            return history_of(fields)

    def leased(self, run_id: str) -> Sequence[Entry]:
        fields = self._space.whole(names.history(run_id), PEOPLE_PREFIX)
        with decoding(run_id, "the history of run"):
            return history_of(fields)

    def record(self, run_id: str, token: int, entry: Entry) -> None:
        self.try_record(run_id, token, entry)

    def try_record(self, run_id: str, token: int, entry: Entry) -> bool:
        recorded = self.entry(run_id, entry.location)
        is_written = recorded is None or rules.supersedes(entry, recorded)
        if is_written:
            self.put(run_id, token, [entry])
        return is_written

    def put(self, run_id: str, token: int, entries: Iterable[Entry]) -> None:
        new: dict[str, bytes] = {}
        for entry in entries:
            new[entry.location] = entry_value(entry)
            if entry.has_undo:
                self._space.add(names.undo_index(run_id), entry.location)
        if new:
            self._space.put(names.history(run_id), new)

    def drop(self, run_id: str, locations: Iterable[str]) -> None:
        dropped = list(locations)
        if dropped:
            self._space.drop(names.history(run_id), dropped)
            for location in dropped:
                self._space.remove(names.undo_index(run_id), location)

    def clear(self, run_id: str) -> None:
        history = names.history(run_id)
        self._space.guard(history)
        self._space.clear(history)
        self._space.clear(names.undo_index(run_id))
        self._space.put(history, {})

    def prune(self, run_id: str, scope: str) -> None:
        inside = [entry for entry in self.all(run_id) if is_within(entry.location, scope)]
        self.drop(run_id, [entry.location for entry in inside if not entry.has_undo])

    def forget(self, run_id: str, before: int) -> None:
        shown = [one for one in self._space.whole(names.history(run_id)).items() if is_for_people(one[0])]
        with decoding(run_id, "the history of run"):
            # Only their positions: these entries may have large payloads.
            old = [location for location, value in shown if 0 < _decode_position(value).position < before]
        self.drop(run_id, old)

    def has_undo(self, run_id: str) -> bool:
        return bool(self._space.range(names.all_undo(run_id), names.history(run_id)))

    def last_position(self, run_id: str) -> int:
        return max((entry.position for entry in self.all(run_id)), default=0)


decode_arrival = msgspec.json.Decoder(Arrival).decode
decode_reply = msgspec.json.Decoder(tuple[str, Micros]).decode

FEW = 64
"""Number of arrivals up to which they are read one by one, instead of the whole inbox."""


def arrivals_of(fields: Mapping[str, bytes]) -> tuple[Arrival, ...]:
    """Return the arrivals of an inbox in their order."""
    return tuple(sorted(map(decode_arrival, fields.values()), key=lambda arrival: arrival.number))


def _message_ids(arrivals: Iterable[Arrival]) -> list[str]:
    return [one.ref for one in arrivals if one.kind is WaitKind.MESSAGE and one.ref is not None]


def known_fields(message_id: str) -> tuple[str, str]:
    """Return the fields that show if a message has arrived at a run before."""
    return names.unread_field(message_id), names.receipt_field(message_id)


def aged_member(at: Micros, run_id: str, message_id: str) -> str:
    """Return the member of a receipt or reply in the index of their ages."""
    return names.time_text(at) + encode((run_id, message_id)).decode()


def parsed_member(member: str) -> tuple[str, str]:
    """Return the run and the message of a member that `aged_member` made."""
    return msgspec.json.decode(member[names.TIME_DIGITS :], type=tuple[str, str])


class KvInboxes:
    """Unread arrivals of runs, receipts of received messages, and replies."""

    def __init__(self, space: Workspace, runs: KvRuns) -> None:
        self._space = space
        self._runs = runs

    def add(self, run_id: str, arrival: Arrival) -> None:
        self.put(run_id, [arrival])

    def put(self, run_id: str, arrivals: Sequence[Arrival]) -> None:
        if arrivals:
            self._space.put(names.inbox(run_id), {str(one.number): encode(one) for one in arrivals})
        unread = {names.unread_field(id): b"" for id in _message_ids(arrivals)}
        if unread:
            self._space.put(names.message_ids(run_id), unread)

    def newer(self, run: Run | Fence, seen: int) -> tuple[Arrival, ...]:
        if run.arrivals - seen > FEW:
            return tuple(one for one in self._all(run.id) if one.number > seen)
        inbox = names.inbox(run.id)
        numbers = [str(number) for number in range(seen + 1, run.arrivals + 1)]
        if not self._runs.is_new(run.id):
            self._space.expect([Fields(inbox, tuple(numbers))] if numbers else [])
        found = [self._space.field(inbox, number) for number in numbers]
        with decoding(run.id, "the inbox of run"):
            return tuple(decode_arrival(value) for value in found if value is not None)

    def _all(self, run_id: str) -> tuple[Arrival, ...]:
        fields = self._space.whole(names.inbox(run_id))
        with decoding(run_id, "the inbox of run"):
            return arrivals_of(fields)

    def take(self, run_id: str, number: int) -> Taken | None:
        value = self._space.field(names.inbox(run_id), str(number))
        if value is None:
            return None
        with decoding(run_id, "the inbox of run"):
            arrival = decode_arrival(value)
        self._space.drop(names.inbox(run_id), [str(number)])
        self._forget_messages(run_id, [arrival])
        return arrival.kind, arrival.name, arrival.ref, arrival.is_exclusive

    def _forget_messages(self, run_id: str, arrivals: Iterable[Arrival]) -> None:
        unread = [names.unread_field(id) for id in _message_ids(arrivals)]
        if unread:
            self._space.drop(names.message_ids(run_id), unread)

    def clear(self, run: Run) -> None:
        if not run.arrivals:
            return
        arrivals = self._all(run.id)
        if arrivals:
            self._space.drop(names.inbox(run.id), [str(one.number) for one in arrivals])
            self._forget_messages(run.id, arrivals)

    def keep_messages(self, run: Run) -> None:
        others = [one for one in self._all(run.id) if one.kind is not WaitKind.MESSAGE] if run.arrivals else []
        if others:
            self._space.drop(names.inbox(run.id), [str(one.number) for one in others])

    def messages(self, run: Run) -> Sequence[Arrival]:
        return [one for one in self._all(run.id) if one.kind is WaitKind.MESSAGE] if run.arrivals else []

    def events(self, run: Run, topic: str) -> Sequence[Arrival]:
        return [one for one in self._all(run.id) if one.kind is WaitKind.EVENT and one.name == topic]

    def exclusive(self, run: Run) -> Sequence[Arrival]:
        return [one for one in self._all(run.id) if one.is_exclusive]

    def has_end_of(self, run: Run, child_id: str) -> bool:
        return any(one.kind is WaitKind.CHILD and one.name == child_id for one in self._all(run.id))

    def knows_message(self, run: Run, message_id: str, now: Micros) -> bool:
        partition = names.message_ids(run.id)
        if self._space.field(partition, names.unread_field(message_id)) is not None:
            return True
        received = self._space.field(partition, names.receipt_field(message_id))
        return received is not None and int(received) > now - RECEIPT_RETENTION

    def keep_receipts(self, run_id: str, received: Mapping[str, Micros]) -> None:
        if not received:
            return
        times = {names.receipt_field(id): b"%d" % at for id, at in received.items()}
        self._space.put(names.message_ids(run_id), times)
        for message_id, at in received.items():
            self._space.add(names.RECEIPTS, aged_member(at, run_id, message_id))

    def keep_replies(self, run_id: str, replies: Mapping[str, tuple[str, Micros]]) -> None:
        if not replies:
            return
        name = names.replies(run_id)
        if not self._runs.is_new(run_id):
            self._space.expect([Fields(name, tuple(replies))])
        for message_id, (payload, at) in replies.items():
            if self._runs.is_new(run_id) or self._space.field(name, message_id) is None:
                self._space.put(name, {message_id: encode((payload, at))})
                self._space.add(names.REPLIES, aged_member(at, run_id, message_id))


_decode_fact = msgspec.json.Decoder(AuditFact).decode


def fact_line(fact: AuditFact) -> bytes:
    """Return a fact as a line of the log of its run: JSON without the run."""
    return b"{" + encode(fact)[len(encode(fact.run_id)) + 11 :]


def facts_of(run_id: str, lines: Iterable[bytes]) -> tuple[AuditFact, ...]:
    """Return the facts in the log of a run."""
    begin = b'{"run_id":' + encode(run_id) + b","
    return tuple(_decode_fact(begin + line[1:]) for line in lines)


class KvAudit:
    """The audit facts of runs. A change of a run's audit always comes with a change of its head."""

    def __init__(self, space: Workspace, runs: KvRuns) -> None:
        self._space = space
        self._runs = runs

    def note(self, fact: AuditFact | None) -> None:
        if fact is not None:
            self._space.append(names.audit(fact.run_id), fact_line(fact))

    def note_often(self, fact: AuditFact, count: int) -> None:
        self.note(fact)
        if count and count % audit.TRIM_EVERY == 0 and not self._runs.is_new(fact.run_id):
            log = names.audit(fact.run_id)
            for line in surplus(self._space.log(log)):
                self._space.cut(log, line)

    def note_once(self, fact: AuditFact, count: int = 1) -> None:
        if all(fact.event != known.event or fact.data != known.data for known in self.all(fact.run_id)):
            self.note_often(fact, count)

    def has_request(self, run_id: str, request_id: str) -> bool:
        return any(fact.data.get(audit.REQUEST) == request_id for fact in self.all(run_id))

    def requests(self, run_id: str) -> Sequence[AuditFact]:
        return facts_of(run_id, self._space.log(names.audit(run_id)))

    all = requests


def surplus(lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines of routine facts beyond the number that is kept."""
    events = (fact.event for fact in facts_of("", lines))
    routine = [line for line, event in zip(lines, events, strict=True) if event in audit.ROUTINE]
    return routine[: max(0, len(routine) - audit.KEPT)]
