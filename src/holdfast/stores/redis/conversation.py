"""A conversation: commands and replies as a generator, so that blocking and event-loop connections share one text.

A conversation yields packed commands and gets their replies, in order. An error reply is an item like others.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from hiredis import Reader

from holdfast.stores.redis.errors import ServerError
from holdfast.stores.redis.scripts import Argument, LuaScript, pack

T = TypeVar("T")

Conversation = Generator[list[bytes], list[Any], T]

PENDING = object()
"""Returned by a reader while a reply is incomplete."""

_NO_SCRIPT = "NOSCRIPT"


def reply_reader() -> Reader:
    """Return a reader of replies. Texts stay bytes, and an error is an object."""
    return Reader(replyError=ServerError, notEnoughData=PENDING)


def packed(*words: Argument) -> bytes:
    """Return a command as the server reads it."""
    return pack(words)


def asked(*commands: bytes) -> Conversation[list[Any]]:
    """Send commands together. Raise the first error among their replies."""
    replies = yield list(commands)
    for reply in replies:
        if isinstance(reply, ServerError):
            raise reply
    return replies


def scripted(script: LuaScript, keys: Sequence[str], arguments: Sequence[Argument]) -> Conversation[Any]:
    """Run a script. A server that does not know it gets its text."""
    (reply,) = yield [script.call(keys, arguments)]
    if is_unknown_script(reply):
        (reply,) = yield [script.whole_call(keys, arguments)]
    if isinstance(reply, ServerError):
        raise reply
    return reply


def is_unknown_script(reply: object) -> bool:
    """True if the server does not have a script. It has done nothing."""
    return isinstance(reply, ServerError) and reply.code == _NO_SCRIPT
