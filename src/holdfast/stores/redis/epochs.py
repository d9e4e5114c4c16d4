"""Epochs: a namespace begins a new epoch when its server was restarted or replaced, and all leases of the old one end.

A migration that older workers do not understand begins one, too: so each client checks the schema number again.

A server that comes back may have forgotten writes that it had confirmed. So every client compares the server with the
one that the namespace knows, on each new connection and before anything else. `epoch.lua` says what happens if it is
another one.

A server is known by its `run_id`, which is new for each process. Some users may not call INFO, and some services do not
show it. For those a *witness* stands for it: a script with a random text, because a server keeps its scripts in memory
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

import logging
import secrets
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.core.clock import Clock, Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ports import SchemaStatus
from holdfast.stores.kv.migrations import OLDEST_FIELD
from holdfast.stores.migrations import check
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.connections import Conversation, asked, is_unknown_script, packed, scripted
from holdfast.stores.redis.errors import ServerError
from holdfast.stores.redis.scripts import Keys, LuaScript, script_sha

RELEASED_AT_ONCE = 500
"""Maximum number of leases that one call makes void, so that it does not stop the server for long."""

LOG = "epochs"
"""The log of epochs: one line of JSON each (`EpochLine`)."""

_log = logging.getLogger("holdfast.store")


class EpochLine(msgspec.Struct, frozen=True):
    """The beginning of an epoch: when, after which one, and how many leases it made void.

    `version` is the last version that the server knew; 0 if the namespace was empty. `lost` is how many confirmed
    versions above it were lost, as far as clients have reported.
    """

    at: Micros
    from_: int = msgspec.field(name="from")
    to: int
    released: int
    version: int
    lost: int


decode_line = msgspec.json.Decoder(EpochLine).decode


class Epochs:
    """The epoch that this process knows, and the highest version that was confirmed to it. Any thread may use it."""

    def __init__(self, address: RedisAddress, keys: Keys, script: LuaScript, clock: Clock | None, number: int) -> None:
        self._address = address
        self._keys = keys
        self._script = script
        self._clock = clock
        self._schema_number = number
        self._changing = threading.Lock()
        self._confirmed = 0
        self._witness = b""
        self.number = 0
        """The epoch; 0 before the first connection."""

    def confirm(self, version: int) -> None:
        """Note that the server has confirmed a version."""
        self._confirmed = max(self._confirmed, version)

    def check(self, info: Mapping[str, str], *, must_begin: bool = False) -> Conversation[None]:
        """Compare the server with the one that the namespace knows, and begin a new epoch if it is another one.

        With `must_begin`, an epoch begins in any case.

        Raises:
            SchemaOutOfDate: The namespace was migrated, and this code can no longer use it.

        """
        run_id = run_id_of(info)
        while True:
            noted, number, is_voiding = yield from self._noted()
            with self._changing:
                # The witness that this client knows for an epoch; None if it has not worked in it.
                own_witness = self._witness if number == self.number else None
            is_same, server = yield from recognized(noted, run_id, own_witness)
            is_same = is_same and not must_begin
            if is_same:
                self._refuse_older(number)
                if server == noted and not is_voiding and self.number in (0, number):
                    self._adopt(number, server, 0, 0)
                    return
            reply = yield from self._begin(noted, number, server, is_same=is_same)
            if isinstance(reply, int):
                continue  # another client was first
            number, is_done, released, lost = reply
            must_begin = False
            if is_done:
                self._adopt(number, server, released, lost)
                return

    def _noted(self) -> Conversation[tuple[ServerIdentity, int, bool]]:
        """Return the server that the namespace knows, the epoch (0 if there is none), and True if leases are left."""
        fields = ("server", "witness", "epoch", "voiding", OLDEST_FIELD)
        ((run_id, witness, epoch, voiding, oldest),) = yield from asked(packed("HMGET", self._keys.meta, *fields))
        wanted = self._schema_number
        check(SchemaStatus(current=wanted, wanted=wanted, compatible_from=int(oldest or 0)), self._address.shown)
        return ServerIdentity(run_id or b"", witness or b""), int(epoch or 0), voiding is not None

    def _begin(self, noted: ServerIdentity, number: int, server: ServerIdentity, *, is_same: bool) -> Conversation[Any]:
        """Begin an epoch, or complete the one that is noted."""
        at = "" if self._clock is None else self._clock.now()
        arguments = (self._keys.prefix, at, self._keys.channel, RELEASED_AT_ONCE, self.number, self._confirmed)
        return (
            yield from scripted(self._script, self._keys.of_epoch, (*arguments, number, *noted, int(is_same), *server))
        )

    def _refuse_older(self, number: int) -> None:
        """Refuse a primary that others have replaced, and that does not know it yet. It would lose all writes."""
        if number < self.number:
            raise StoreUnavailable(
                f"{self._address.shown} is no longer the primary: another server has taken over (epoch {self.number}, "
                f"here {number}); name that one; if the data was restored from a backup, restart this process"
            )

    def _adopt(self, number: int, server: ServerIdentity, released: int, lost: int) -> None:
        with self._changing:
            if number < self.number:
                return  # another connection knows better, and the server refuses what comes on this one
            self._witness = server.witness
            if number == self.number:
                return
            known, confirmed = self.number, self._confirmed
            self.number, self._confirmed = number, 0
        if known:
            self._log_change(released, lost, is_emptied=0 < confirmed <= lost)

    def _log_change(self, released: int, lost: int, *, is_emptied: bool) -> None:
        if is_emptied:
            _log.error(
                "%s is empty: all its runs are gone; the namespace was removed (FLUSHALL?), or the server was started "
                "without its data",
                self._address.shown,
            )
            return
        _log.log(
            logging.ERROR if lost else logging.WARNING,
            "the server of %s was restarted or replaced, or the store was migrated: %s released, and their runs start "
            "again from their last checkpoint%s",
            self._address.shown,
            "1 lease was" if released == 1 else f"{released:,} leases were",
            f"; at least {lost} confirmed writes were lost" if lost else "",
        )


# The identity of a server


class ServerIdentity(NamedTuple):
    """The names of a server: its run id and its witness, each empty if it is not known."""

    run_id: bytes = b""
    witness: bytes = b""


def run_id_of(info: Mapping[str, str]) -> bytes:
    """Return the run id that a server shows; empty if it does not."""
    run_id = info.get("run_id", "")
    return run_id.encode() if run_id.strip("0") else b""


def identity_advice(address: RedisAddress) -> str:
    """Return what it means that a server does not show its run id, and what to do."""
    return (
        "does not show its run_id to this user (INFO): a restart or failover is recognized by a script that the store "
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
    # Not by SCRIPT LOAD: Redis 6.2 writes that to its append-only file, and sends it to replicas.
    text = f"return '{secrets.token_hex(16)}'"
    yield from asked(packed("EVAL", text, 0))
    return is_same, ServerIdentity(noted.run_id if is_same else b"", script_sha(text).encode())


def _has_witness(witness: bytes) -> Conversation[bool]:
    if not witness:
        return False
    # It is run, because servers remove scripts that were not used for long.
    (reply,) = yield [packed("EVALSHA", witness, 0)]
    if isinstance(reply, ServerError) and not is_unknown_script(reply):
        raise reply
    return not isinstance(reply, ServerError)
