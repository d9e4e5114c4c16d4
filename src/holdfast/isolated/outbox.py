"""The outbox: what a run asks of other runs. The host delivers each item at least once, then clears it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from holdfast.core.codec import decode_any
from holdfast.core.errors import InvalidRequest, Unreadable
from holdfast.core.model import DeadLetter, Event, Intent, MessageToRun, Reply, Value
from holdfast.isolated.checked_driver import CheckedDriver
from holdfast.isolated.driver import NamespaceDriver
from holdfast.isolated.keys import pack
from holdfast.isolated.layout import OUTBOX
from holdfast.isolated.values import ValueReader

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


read_item = ValueReader(OutboxItem)


async def delivered(driver: NamespaceDriver, ids: Iterable[str]) -> None:
    """Remove items from the outbox of a namespace, after the host has delivered them. Ids of no item are ignored."""
    if isinstance(ids, str):
        raise InvalidRequest(f"delivered(ids={ids!r}): expected several ids, such as [item.id for item in step.outbox]")
    checked, wanted = CheckedDriver(driver), {_checked(one) for one in ids}
    if not wanted:
        return
    keys = [key for key in await checked.list(pack((OUTBOX,))) if await _id_at(checked, key) in wanted]
    if keys:
        await checked.remove(keys)


def _checked(id: Any) -> str:
    if not isinstance(id, str):
        raise InvalidRequest(f"delivered(ids=…): expected the ids of items, got {id!r:.80}")
    return id


async def _id_at(driver: CheckedDriver, key: bytes) -> str | None:
    """Return the id of an item, or None if it was cleared meanwhile."""
    value = await driver.get(key)
    if value is None:
        return None
    try:
        item: OutboxItem = read_item(value)
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
