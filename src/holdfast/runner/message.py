"""A message as the workflow that received it sees it, if it wants to know more than the payload, or to reply."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.core.clock import Micros, moment
from holdfast.core.codec import Codec, encode_any
from holdfast.core.errors import InvalidRequest
from holdfast.core.location import name_from
from holdfast.core.model import EntryKind, Reply, WaitKind
from holdfast.core.received import Received
from holdfast.runner.child import Done
from holdfast.runner.operation import Reception

if TYPE_CHECKING:
    from holdfast.runner.code_requests import CodeRequests

T = TypeVar("T")


class Message(Generic[T]):
    """A received message, as `ctx.receive_message` returns it."""

    def __init__(self, requests: CodeRequests, received: Received, payload: T) -> None:
        self._requests = requests
        self._is_answered = False
        self.id = received.ref or ""
        """The id of the message, made up by the sender or by holdfast."""
        self.name = received.name
        """Its name."""
        self.payload = payload
        """Its payload, decoded as `type=` said."""
        self.sent_at: datetime = moment(received.at)
        """When it was sent."""

    def reply(self, value: Any = None) -> Done:
        """Answer the sender, who waits in `run.request`: once, with the next checkpoint."""
        self._requests.loop.check_inside()
        if self._is_answered:
            raise InvalidRequest(f"message {self.name!r} ({self.id}) has its reply already; a message has only one")
        payload = encode_any(value, f"reply to message {self.name!r}")
        location = self._requests.loop.scope.locate(name_from("reply", self.name))
        reply = Reply(message_id=self.id, payload=payload)
        self._requests.command(EntryKind.REPLY, location, ref=self.id, reply=reply)
        self._is_answered = True
        return Done(self._requests)

    def __repr__(self) -> str:
        return f"<message {self.name} {self.id}>"


class MessageReception(Reception):
    """A wait for a message that is handed over whole."""

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
