"""Mail between a run and others, which the host delivers.

`message`, `event`, `child_ended` and `cancel` return a key and a value. The host sets them with the driver of the
receiver, and the run accepts them at its next advance. What a run asks of others is in its outbox: the host delivers
each item at least once, then clears it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, assert_never

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros, SystemClock, instant
from holdfast.core.codec import decode_any, encode_any
from holdfast.core.commands import Cancellation
from holdfast.core.errors import ErrorRecord, InvalidRequest, Unreadable
from holdfast.core.intent import check_id, check_text, check_topic
from holdfast.core.location import check_name
from holdfast.core.model import DeadLetter, Event, Intent, MessageToRun, Reply, Value
from holdfast.core.states import RunState
from holdfast.isolated.driver import CheckedDriver, NamespaceDriver
from holdfast.isolated.layout import MESSAGES, OUTBOX, encode, pack
from holdfast.stores.operations import arrivals, transitions
from holdfast.stores.operations.unit_of_work import UnitOfWork


class MessageMail(msgspec.Struct, frozen=True, tag="message"):
    """A message to the run."""

    id: str
    at: Micros
    name: str
    payload: str


class EventMail(msgspec.Struct, frozen=True, tag="event"):
    """An event on a topic."""

    id: str
    at: Micros
    topic: str
    payload: str


class EndMail(msgspec.Struct, frozen=True, tag="end"):
    """The end of a child."""

    id: str
    at: Micros
    state: RunState
    result: str | None
    error: ErrorRecord | None


class CancelMail(msgspec.Struct, frozen=True, tag="cancel"):
    """The request to cancel the run."""

    id: str
    at: Micros
    reason: str


Mail = MessageMail | EventMail | EndMail | CancelMail

read_mail = msgspec.msgpack.Decoder(Mail).decode

Written = tuple[bytes, bytes]
"""A key and its value."""


def message(id: str, name: str, payload: Any = None, *, at: datetime | None = None) -> Written:
    """Return the key and the value of a message to the run of a namespace.

    The run receives messages in the order of their ids, of those that came between two advances. A message with the id
    of an earlier one is dropped for a day. `at` is when it was sent; default: now.
    """
    text = encode_any(payload, f"payload of message {name!r}")
    return _written(MessageMail(_checked(id), _at(at), check_name(name, "message name"), text))


def event(id: str, topic: str, payload: Any = None, *, at: datetime | None = None) -> Written:
    """Return the key and the value of an event on a topic, for each namespace whose run may wait for it."""
    text = encode_any(payload, f"payload of event {topic!r}")
    return _written(EventMail(_checked(id), _at(at), check_topic(topic), text))


def child_ended(
    id: str,
    *,
    state: RunState | str,
    result: Any = None,
    error: ErrorRecord | str | None = None,
    at: datetime | None = None,
) -> Written:
    """Return the key and the value of the end of a child, for the namespace of its parent. `id` is the child's run id.

    State, result and error are those of `Advanced`. For a child that another system runs, `error` may be a text.
    """
    try:
        end = RunState(state)
    except ValueError as unknown:
        raise InvalidRequest(f"child_ended(state={state!r}): expected succeeded, failed or cancelled") from unknown
    if not end.is_end:
        raise InvalidRequest(f"child_ended(state={state!r}): expected succeeded, failed or cancelled")
    text = encode_any(result, f"result of child {id}") if end is RunState.SUCCEEDED else None
    return _written(EndMail(check_id(id), _at(at), end, text, _error(id, end, error)))


def _error(id: str, end: RunState, error: ErrorRecord | str | None) -> ErrorRecord | None:
    """Return the error of a child. One that did not succeed always has an error."""
    if isinstance(error, ErrorRecord) or (error is None and end is RunState.SUCCEEDED):
        return error
    if not isinstance(error, str | None):
        raise InvalidRequest(f"child_ended(error={error!r:.80}): expected the error of Advanced, or a text")
    type = "Cancelled" if end is RunState.CANCELLED else "RunFailed"  # by this type its parent knows the difference
    return ErrorRecord(type=type, message=error or f"run {id} {end.value}")


def cancel(id: str, reason: str = "", *, at: datetime | None = None) -> Written:
    """Return the key and the value of a request to cancel the run of a namespace. A repeat changes nothing."""
    if not isinstance(reason, str):
        raise InvalidRequest(f"cancel(reason={reason!r:.80}): expected a text")
    return _written(CancelMail(_checked(id), _at(at), reason))


def accept(unit: UnitOfWork, run_id: str, mail: Mail, now: Micros) -> None:
    """Deliver mail to a run, by the rules of every store, at the time at which the host wrote it."""
    run = unit.runs.get(run_id)
    assert run is not None, "a run that exists accepts mail"
    at = max(min(mail.at, now), run.created_at)
    match mail:
        case MessageMail():
            sent = MessageToRun(id=mail.id, name=mail.name, payload=mail.payload, run_id=run_id)
            arrivals.send_one(unit, sent, at)
        case EventMail():
            arrivals.publish(unit, Event(id=mail.id, topic=mail.topic, payload=mail.payload), at)
        case EndMail():
            _end_child(unit, mail, at)
        case CancelMail():
            transitions.cancel(unit, run_id, Cancellation(reason=mail.reason), at)
        case _:
            assert_never(mail)


def _end_child(unit: UnitOfWork, mail: EndMail, at: Micros) -> None:
    """End the parent's stub of a child, which notifies the parent and gives the slot to the next sibling."""
    child = unit.runs.get(mail.id)
    if child is None or child.state.is_end:
        return  # a repeat, or the parent no longer waits for it
    ended = replace(child, state=mail.state, result=mail.result, error=mail.error, ready_at=None, finished_at=at)
    transitions.move(unit, child, ended, at)


def _written(mail: Mail) -> Written:
    kind = {MessageMail: (), EventMail: (1,), EndMail: (2,), CancelMail: (3,)}[type(mail)]
    return pack((MESSAGES, mail.id, *kind)), encode(mail)


def _checked(id: str) -> str:
    return check_text(id, "mail id")


def _at(at: datetime | None) -> Micros:
    return SystemClock().now() if at is None else instant(at, "at")


# The outbox

ItemKind = Literal["start", "cancel", "send", "emit", "reply", "undelivered"]


class OutboxItem(Value, frozen=True, kw_only=True):
    """A request of a run to its host, written in the batch of the checkpoint that made it.

    - `start`: begin the child `run_id` in a namespace of its own, with `isolated.advance(…, start=item)`.
    - `cancel`: cancel the child `run_id`, with `isolated.cancel`.
    - `send`: send the message `name` to the run `run_id`, or to the run with the key `key`, with `isolated.message`.
    - `emit`: publish an event on the topic `name`, with `isolated.event` in each namespace that may wait for it.
    - `reply`: the answer to the message `name`.
    - `undelivered`: a message that the run did not receive, of a run that keeps these.
    """

    id: str
    """It is the same at each delivery, so that a receiver can recognise a repeat."""
    kind: ItemKind
    """The kind of the request, as above."""
    name: str
    """The name of the message, the topic, the type of the child, the reason of a cancel, or the id that is answered."""
    text: str = "null"
    """The payload as JSON text."""
    run_id: str | None = None
    """The other run."""
    key: str | None = None
    """The key of the other run, if the message was sent by key."""
    intent: Intent | None = None
    """The options of a child that starts. `isolated.advance(…, start=item)` reads them."""

    @property
    def payload(self) -> Any:
        """The payload as a plain value."""
        return decode_any(self.text, f"payload of {self.kind} {self.id}")


read_item = msgspec.msgpack.Decoder(OutboxItem).decode


async def delivered(driver: NamespaceDriver, ids: Iterable[str]) -> None:
    """Remove items from the outbox of a namespace, after the host has delivered them. Ids of no item are ignored."""
    if isinstance(ids, str):
        raise InvalidRequest(f"delivered(ids={ids!r}): expected several ids, such as [item.id for item in step.outbox]")
    checked, wanted = CheckedDriver(driver), {_checked_item_id(one) for one in ids}
    if not wanted:
        return
    keys = [key for key in await checked.list(pack((OUTBOX,))) if await _id_at(checked, key) in wanted]
    if keys:
        await checked.remove(keys)


def _checked_item_id(id: Any) -> str:
    if not isinstance(id, str):
        raise InvalidRequest(f"delivered(ids=…): expected the ids of items, got {id!r:.80}")
    return id


async def _id_at(driver: CheckedDriver, key: bytes) -> str | None:
    """Return the id of an item, or None if it was cleared meanwhile."""
    value = await driver.get(key)
    if value is None:
        return None
    try:
        item = read_item(value)
    except ValueError as error:
        raise Unreadable(f"the outbox cannot be read: {error}; nothing was written") from error
    return item.id


def start_of(intent: Intent) -> OutboxItem:
    """Return the request to start a child."""
    return OutboxItem(
        id=f"start:{intent.id}", kind="start", name=intent.type, run_id=intent.id, text=intent.payload, intent=intent
    )


def cancel_of(run_id: str, reason: str) -> OutboxItem:
    """Return the request to cancel a child."""
    return OutboxItem(id=f"cancel:{run_id}", kind="cancel", name=reason, run_id=run_id)


def send_of(message: MessageToRun) -> OutboxItem:
    """Return the request to send a message."""
    return OutboxItem(
        id=message.id, kind="send", name=message.name, run_id=message.run_id, key=message.key, text=message.payload
    )


def emit_of(event: Event) -> OutboxItem:
    """Return the request to publish an event."""
    return OutboxItem(id=event.id, kind="emit", name=event.topic, text=event.payload)


def reply_of(reply: Reply) -> OutboxItem:
    """Return the answer to a message."""
    return OutboxItem(id=f"reply:{reply.message_id}", kind="reply", name=reply.message_id, text=reply.payload)


def undelivered_of(letter: DeadLetter) -> OutboxItem:
    """Return a message that an ended run did not receive."""
    id = f"undelivered:{letter.id}"
    return OutboxItem(id=id, kind="undelivered", name=letter.name or "", run_id=letter.run_id, text=letter.payload)
