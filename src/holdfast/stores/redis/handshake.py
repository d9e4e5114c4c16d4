"""The handshake of a new connection: who we are, which database, and if the server is one that can be written."""

from __future__ import annotations

from holdfast.core.errors import StoreUnavailable
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.conversation import Conversation, packed
from holdfast.stores.redis.errors import ServerError

CLIENT_NAME = "holdfast"
"""The name of our connections in CLIENT LIST."""

Info = dict[str, str]


def handshake(address: RedisAddress) -> Conversation[Info]:
    """Log in, and return what the server tells about itself: nothing, if this user may not ask.

    Raises:
        StoreUnavailable: The server is a replica.

    """
    required = []
    if address.password:
        account = (address.user, address.password) if address.user else (address.password,)
        required.append(packed("AUTH", *account))
    if address.database:
        required.append(packed("SELECT", address.database))
    required.append(packed("PING"))
    replies = yield [*required, packed("CLIENT", "SETNAME", CLIENT_NAME), packed("INFO")]
    for reply in replies[: len(required)]:
        if isinstance(reply, ServerError):
            raise reply
    info = replies[-1]
    told = {} if isinstance(info, ServerError) else parsed_info(info)
    # Also one that accepts writes: it would forget them.
    if told.get("role", "master") != "master":
        raise StoreUnavailable(
            f"{address.shown} is a replica, which cannot be written; name the primary, or wait until the failover is "
            "over"
        )
    return told


def parsed_info(text: bytes) -> Info:
    """Return the fields of an INFO reply."""
    lines = (line.partition(":") for line in text.decode(errors="replace").splitlines() if not line.startswith("#"))
    return {name: value for name, mark, value in lines if mark}
