"""Mail: what a host writes into the namespace of a run, and how the run takes it in at its next advance.

Each function returns a key and a value. The host sets them with its driver, then advances the run.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros, SystemClock, instant
from holdfast.core.codec import encode_any
from holdfast.core.commands import Cancellation
from holdfast.core.errors import ErrorRecord, InvalidRequest
from holdfast.core.intent import check_id, check_text, check_topic
from holdfast.core.location import check_name
from holdfast.core.model import Event, MessageToRun
from holdfast.core.states import RunState
from holdfast.isolated.keys import pack
from holdfast.isolated.layout import MESSAGES
from holdfast.isolated.values import ValueReader, encode
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

read_mail = ValueReader(Mail)

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


def take_in(unit: UnitOfWork, run_id: str, mail: Mail, now: Micros) -> None:
    """Deliver mail to a run, by the rules of every store, at the time at which the host wrote it."""
    run = unit.runs.get(run_id)
    assert run is not None, "mail is taken in by a run that exists"
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
    """End the parent's stub of a child, which tells the parent and gives the slot to the next sibling."""
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
