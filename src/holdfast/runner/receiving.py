"""Receiving: the methods of a context that wait for messages and events, and the message that one of them returns."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, overload

from holdfast.core.clock import Micros, micros, moment
from holdfast.core.codec import ANY, Codec, encode_any
from holdfast.core.entries import Received
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import check_topic
from holdfast.core.location import check_name, name_from
from holdfast.core.model import EntryKind, Reply, WaitKind
from holdfast.runner.children import Done
from holdfast.runner.operation import Batch, Reception

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from holdfast.runner.code_requests import CodeRequests

    T = TypeVar("T", default=Any)  # without `type=`, a payload is of any type
else:
    from typing import TypeVar

    T = TypeVar("T")


BATCH_LIMIT = 1_000
"""Maximum number of messages in one batch, because a batch is one entry."""


class Receiving:
    """The part of a context that waits for messages and events."""

    _requests: CodeRequests

    def wait_event(
        self, topic: str, *, type: type[T] | None = None, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, T]:
        """Wait for the next event on a topic and return its payload. Raises `WaitTimeout` if none comes in time.

        A run gets each event that was published after its start, once. From a queue, it gets the next event that no
        other run has taken, however old that is. `type` says how to decode the payload.
        """
        check_topic(topic)
        location = self._locate(name_from("event", topic))
        deadline = self._deadline(timeout)
        return self._requests.perform(Reception(location, WaitKind.EVENT, (topic,), _codec(type), deadline=deadline))

    @overload
    def receive(  # type: ignore[overload-overlap]  # a str is a sequence of strings, too
        self, name: str, *, type: type[T] | None = None, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def receive(
        self, name: Sequence[str] | None = None, *, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, tuple[str, Any]]: ...
    def receive(
        self,
        name: str | Sequence[str] | None = None,
        *,
        type: Any = None,
        timeout: float | timedelta | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Wait for the next message with this name and return its payload. Raises `WaitTimeout` if none comes in time.

        With several names, or without a name for any message, it returns `(name, payload)`. Messages are kept in order,
        even if they were sent before the run asked for them or began. `type` says how to decode the payload.
        """
        names = _names(name, "receive")
        reception = Reception(
            self._locate_reception(names),
            WaitKind.MESSAGE,
            names,
            _codec(type),
            deadline=self._deadline(timeout),
            with_name=not isinstance(name, str),
        )
        return self._requests.perform(reception)

    @overload
    def receive_batch(  # type: ignore[overload-overlap]  # likewise
        self, name: str, count: int, timeout: float | timedelta | None = None, *, type: type[T] | None = None
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def receive_batch(
        self, name: Sequence[str] | None, count: int, timeout: float | timedelta | None = None
    ) -> Coroutine[Any, Any, list[tuple[str, Any]]]: ...
    def receive_batch(
        self,
        name: str | Sequence[str] | None,
        count: int,
        timeout: float | timedelta | None = None,
        *,
        type: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        """Wait for messages and return the payloads of up to `count` of them as soon as there is one.

        Returns an empty list if none comes within `timeout`. With several names, or None for any, each item is `(name,
        payload)`. All of them cost one checkpoint.
        """
        names = _names(name, "receive_batch")
        batch = Batch(
            self._locate_reception(names),
            names,
            _codec(type),
            _check_count(count),
            deadline=self._deadline(timeout),
            with_name=not isinstance(name, str),
        )
        return self._requests.perform(batch)

    def receive_message(
        self,
        name: str | Sequence[str] | None = None,
        *,
        type: type[T] | None = None,
        timeout: float | timedelta | None = None,
    ) -> Coroutine[Any, Any, Message[T]]:
        """Wait for the next message and return it whole: with its id, name and time, and a method to reply.

        `name` is one name, several, or None for any. Raises `WaitTimeout` if none comes in time.
        """
        names = _names(name, "receive_message")
        location = self._locate_reception(names)
        deadline = self._deadline(timeout)
        return self._requests.perform(
            MessageReception(self._requests, location, names, _codec(type), deadline=deadline)
        )

    def _locate_reception(self, names: tuple[str, ...]) -> str:
        return self._locate(name_from("receive", "|".join(names)) if names else "receive")

    def _locate(self, name: str) -> str:
        self._requests.loop.check_inside()
        return self._requests.loop.scope.locate(name)

    def _deadline(self, timeout: float | timedelta | None) -> Micros | None:
        return None if timeout is None else self._requests.stamp + max(0, micros(timeout, "timeout"))


def _names(name: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
    """Return the names of the messages to wait for. An empty tuple means any message."""
    if name is None:
        return ()
    names = (name,) if isinstance(name, str) else tuple(name)
    if not names:
        raise InvalidRequest(f"{what}([]) could never return; pass one name, several, or None for any message")
    for one in names:
        check_name(one, "message name")
    return names


def _check_count(count: object) -> int:
    if type(count) is not int or not 1 <= count <= BATCH_LIMIT:
        raise InvalidRequest(f"receive_batch(count={count!r}): expected a whole number from 1 to {BATCH_LIMIT:,}")
    return count


def _codec(hint: Any) -> Codec[Any]:
    return ANY if hint is None or hint is Any else Codec(hint)


class Message(Generic[T]):
    """A received message, as `ctx.receive_message` returns it."""

    def __init__(self, requests: CodeRequests, received: Received, payload: T) -> None:
        self._requests = requests
        self._is_answered = False
        self.id = received.ref or ""
        """The id of the message, chosen by the sender or by holdfast."""
        self.name = received.name
        """Its name."""
        self.payload = payload
        """Its payload, decoded as `type=`."""
        self.sent_at: datetime = moment(received.at)
        """The time at which it was sent."""

    def reply(self, value: Any = None) -> Done:
        """Answer the sender, who waits in `run.request`, exactly once, with the next checkpoint."""
        self._requests.loop.check_inside()
        if self._is_answered:
            raise InvalidRequest(f"message {self.name!r} ({self.id}) already has a reply; a message can have only one")
        payload = encode_any(value, f"reply to message {self.name!r}")
        location = self._requests.loop.scope.locate(name_from("reply", self.name))
        reply = Reply(message_id=self.id, payload=payload)
        self._requests.command(EntryKind.REPLY, location, ref=self.id, command=reply)
        self._is_answered = True
        return Done(self._requests)

    def __repr__(self) -> str:
        return f"<message {self.name} {self.id}>"


class MessageReception(Reception):
    """A wait for a message that returns a `Message` instead of its payload."""

    __slots__ = ("_requests",)

    def __init__(
        self,
        requests: CodeRequests,
        location: str,
        names: tuple[str, ...],
        codec: Codec[Any],
        *,
        deadline: Micros | None,
    ) -> None:
        super().__init__(location, WaitKind.MESSAGE, names, codec, deadline=deadline)
        self._requests = requests

    def meaning(self, received: Received) -> Message[Any]:
        return Message(self._requests, received, self.payload_of(received))
