"""Patience of a connection in tests: how long it waits for the replies of a silent server."""

from __future__ import annotations

from holdfast.stores.redis.connections import LoopConnection


def shorten_patience(connection: LoopConnection, seconds: float) -> None:
    """Let an open connection give up after these seconds, without the timer that an earlier call has set."""
    connection._answer_seconds = seconds
    if connection._watch is not None:
        connection._watch.cancel()
        connection._check_silence()  # sets another timer if a call waits for its reply
