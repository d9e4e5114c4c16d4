"""Inboxes: unread arrivals of runs, receipts of received messages, and replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.model import RECEIPT_RETENTION, Arrival, Fence, Run, WaitKind
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import Fields
from holdfast.stores.kv.runs import KvRuns, decoding
from holdfast.stores.kv.workspace import Workspace
from holdfast.stores.operations.unit_of_work import Taken

encode = msgspec.json.encode
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
    """Return the fields that tell if a message has arrived at a run before."""
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
