"""The identity of a server: by it, a client finds out that a server was restarted or replaced.

A server is known by its `run_id`, which is new for each process. Some users may not call INFO, and some services do not
tell it. For those a *witness* stands for it: a script with a random text, because a server keeps its scripts in memory
only. A namespace notes both, under one epoch. So clients of both kinds agree on an unchanged server:

- A client that knows the run id believes the noted one. If none is noted, a client without it began the epoch and left
  a witness: if that is on the server, the run id is added.
- A client without the run id believes the noted witness. If that is not on the server, the server is another one, or
  its scripts were removed. If none is noted, a client with the run id began the epoch. Then a client that has never
  worked in this epoch only leaves a witness: it has lost nothing.

A client that has worked in an epoch accepts no witness but the one that it knows. Another one may be from a new client,
after a failover that was not noticed yet. So each client that may have lost something notices it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.conversation import Conversation, asked, is_unknown_script, packed
from holdfast.stores.redis.errors import ServerError
from holdfast.stores.redis.scripts import script_sha


class ServerIdentity(NamedTuple):
    """The names of a server: its run id and its witness, each empty if it is not known."""

    run_id: bytes = b""
    witness: bytes = b""


def run_id_of(info: Mapping[str, str]) -> bytes:
    """Return the run id that a server tells; empty if it does not."""
    run_id = info.get("run_id", "")
    return run_id.encode() if run_id.strip("0") else b""


def identity_advice(address: RedisAddress) -> str:
    """Return what it means that a server does not tell its run id, and what to do."""
    return (
        "does not tell its run_id to this user (INFO): a restart or failover is recognized by a script that the store "
        "left on the server, so SCRIPT FLUSH ends all leases, and a new process may notice a failover late; run: "
        f"ACL SETUSER {address.user or 'default'} +info"
    )


def recognized(
    noted: ServerIdentity, run_id: bytes, own_witness: bytes | None
) -> Conversation[tuple[bool, ServerIdentity]]:
    """Compare the server with the noted one: return True if it is the same, and the names to note.

    `own_witness` is the one that this client knows for the noted epoch (empty if it has none), or None if it has not
    worked in that epoch.
    """
    if run_id:
        is_same = noted.run_id == run_id if noted.run_id else (yield from _has_witness(noted.witness))
        return is_same, ServerIdentity(run_id, noted.witness if is_same else b"")
    is_known = own_witness is None or own_witness == noted.witness
    if is_known and noted.witness and (yield from _has_witness(noted.witness)):
        return True, noted
    # Without any evidence, only a client that has nothing to lose takes it for the same server.
    is_same = own_witness is None and bool(noted.run_id) and not noted.witness
    return is_same, ServerIdentity(noted.run_id if is_same else b"", (yield from _new_witness()))


def _has_witness(witness: bytes) -> Conversation[bool]:
    if not witness:
        return False
    # It is run, because servers remove scripts that were not used for long.
    (reply,) = yield [packed("EVALSHA", witness, 0)]
    if isinstance(reply, ServerError) and not is_unknown_script(reply):
        raise reply
    return not isinstance(reply, ServerError)


def _new_witness() -> Conversation[bytes]:
    # Not by SCRIPT LOAD: Redis 6.2 writes that to its append-only file, and sends it to replicas.
    text = f"return '{secrets.token_hex(16)}'"
    yield from asked(packed("EVAL", text, 0))
    return script_sha(text).encode()
