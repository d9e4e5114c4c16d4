"""The Redis driver: what the key-value store needs of an engine, on a Redis or Valkey server.

Each call is one script, so it is atomic and takes one round trip. A call whose connection breaks is repeated on a new
one. If that fails, too, the caller gets `StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import Clock, Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import Holding
from holdfast.core.ports import Finding
from holdfast.stores.kv.driver import Answers, ClaimAnswer, Committed, Gain, Part, Read, Renewed
from holdfast.stores.kv.migrations import MIGRATIONS
from holdfast.stores.redis import server
from holdfast.stores.redis.address import RedisAddress
from holdfast.stores.redis.connections import Conversation, LoopConnection, asked, is_unknown_script, packed
from holdfast.stores.redis.connector import RedisConnector
from holdfast.stores.redis.epochs import LOG, Epochs, identity_advice, run_id_of
from holdfast.stores.redis.errors import ConnectionLost, ServerError, Silence, is_lasting
from holdfast.stores.redis.hints import RedisHints
from holdfast.stores.redis.renewals import Renewals
from holdfast.stores.redis.requests import (
    CommitCall,
    claim_arguments,
    commit_reply,
    first_name,
    found_of,
    in_calls,
    load_answer,
    load_arguments,
    written_names,
)
from holdfast.stores.redis.scripts import Argument, Keys, LuaScript, lua_scripts
from holdfast.stores.redis.server import (
    ServerSettings,
    handshake,
    inspection,
    parsed_info,
    refuse_unsafe,
    unknown_settings,
    unsafe,
)

ATTEMPTS = 3
"""Number of times that a call is tried, if its connection breaks."""
LARGE = 2_000
"""Number of partitions from which a command is made in a thread, because the event loop has other things to do.

It is more than those of a full batch of checkpoints, which a thread would only delay.
"""
CLOSE_SECONDS = 5.0

T = TypeVar("T")

_log = logging.getLogger("holdfast.store")


class RedisDriver:
    """A namespace on a Redis or Valkey server. It belongs to the event loop on which it was opened.

    With a `clock`, its time counts instead of that of the server. `number` is the schema number of the code above it.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, number: int = MIGRATIONS.number) -> None:
        self._address = address = RedisAddress.of(url)
        self._clock = clock
        self._keys = keys = Keys(address.prefix)
        self._scripts = lua_scripts()
        self._epochs = Epochs(address, keys, self._scripts.epoch, clock, number)
        self._connector = RedisConnector(address, self._greeting)
        self._hints = RedisHints(self._connector, keys.channel)
        self._renewals = Renewals(self._connector, self._epochs, keys, self._scripts.renew, clock)
        self._opening = asyncio.Lock()
        self._pid: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: LoopConnection | None = None
        self._connecting: asyncio.Task[LoopConnection] | None = None
        self._reported = ""
        """Why the server is no longer safe, as it was logged last."""

    @property
    def address(self) -> RedisAddress:
        return self._address

    @property
    def epoch(self) -> int:
        """The epoch of the namespace, as far as this driver knows. When it changes, all leases are void.

        Versions and holdings that were loaded under another epoch must be forgotten. 0 before the first connection.
        """
        return self._epochs.number

    # Lifetime

    async def open(self) -> None:
        """Connect, and subscribe to hints.

        Raises:
            InvalidRequest: The server's settings are not safe for runs. The message says what to change.
            StoreUnavailable: The server cannot be reached or used now.

        """
        self._check_process()
        async with self._opening:
            if self._pid is not None:
                return
            self._pid, self._loop = os.getpid(), asyncio.get_running_loop()
            self._renewals.open()
            try:
                self._connection = await self._connector.connect(
                    on_break=self._note_break, greeting=self._first_greeting()
                )
                await self._hints.start()
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Wait for the answers to all calls, for a short time, and disconnect."""
        is_ours = self._pid == os.getpid()
        self._pid = None
        connection, self._connection = self._connection, None
        connecting, self._connecting = self._connecting, None
        if not is_ours:  # a forked child, or not open
            return
        self._renewals.close()
        if self._loop is None or self._loop.is_closed():
            self._hints.forget()  # nothing can be awaited there
            if connection is not None:
                connection.close()
            return
        await self._hints.stop()
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait([connecting])
        if connection is not None:
            await connection.drain(CLOSE_SECONDS)
            connection.close()

    async def begin_epoch(self) -> None:
        """Begin a new epoch: all leases end, and all drivers connect again and check the schema number."""
        await self._converse(self._new_epoch)

    def _new_epoch(self) -> Conversation[None]:
        (info,) = yield [packed("INFO")]
        yield from self._epochs.check(parsed_info(info), must_begin=True)

    # Reading

    def peek(self, partition: str, fields: Sequence[str]) -> dict[str, bytes]:
        """Return those fields that exist. Blocking; the driver need not be open, and nothing is written."""
        (values,) = _execute(self._address, asked(packed("HMGET", self._keys.of(partition), *fields)))
        return {field: value for field, value in zip(fields, values, strict=True) if value is not None}

    async def load(self, reads: Sequence[Read]) -> Answers:
        """Answer reads, all from one snapshot."""
        keys, arguments = load_arguments(reads, self._keys.prefix)
        reply = await self._ask(self._scripts.load, keys, lambda _: (self._time(), *arguments))
        answers = [load_answer(read, answer) for read, answer in zip(reads, reply[1:], strict=True)]
        return Answers(reply[0], answers)

    # Writing

    async def commit(self, parts: Sequence[Part | Gain], hint: bytes = b"", *, epoch: int | None = None) -> Committed:
        """Write each part whose checks hold. Send the hint to all listeners if at least one part was written.

        If the epoch is no longer `epoch` (by default, that of this call), all parts are refused. Many or large parts
        are written in several calls. They get the same version, unless two calls write the same partition.
        """
        if epoch is None:
            epoch = self._epochs.number
        now, version, is_repeat = 0, 0, False
        refused: list[str | None] = []
        written: set[str] = set()
        if len(parts) == 1 and isinstance(parts[0], Part) and len(parts[0].checks) > LARGE:
            calls = await asyncio.to_thread(in_calls, parts, self._keys.prefix)
        else:
            calls = in_calls(parts, self._keys.prefix)
        for call in calls:
            ours = written_names(call.parts) if len(calls) > 1 else set()
            shared = version if ours.isdisjoint(written) else 0
            answer = await self._commit(call, hint, epoch, shared)
            now, version = answer.now, version or answer.version
            is_repeat = is_repeat or answer.is_repeat
            refused += answer.refused
            written |= ours
        self._epochs.confirm(version)
        return Committed(now, version, refused, is_repeat)

    async def _commit(self, call: CommitCall, hint: bytes, epoch: int, version: int) -> Committed:
        """Write the parts of one call."""
        parts = call.parts
        written, pieces = call.packed()
        keys = (self._keys.meta, self._keys.versions, *written)
        arguments = (self._keys.prefix, epoch, self._time(), self._keys.channel, hint, version, len(parts), *pieces)
        is_repeat = False

        def repeated(is_again: bool) -> Sequence[Argument]:  # noqa: FBT001 - called by `_ask` only
            nonlocal is_repeat
            is_repeat = is_again
            return arguments

        reply = await self._ask(self._scripts.commit, keys, repeated)
        if isinstance(reply, int):  # the epoch is another one
            self._leave_epoch(epoch)
            return Committed(reply, 0, [first_name(part) for part in parts], is_repeat)
        return commit_reply(reply, parts, is_repeat=is_repeat)

    async def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Lease due runs, in claim order."""

        def arguments(is_again: bool) -> Sequence[Argument]:  # noqa: FBT001 - called by `_ask` only
            # The server may have leased runs before the connection broke. The repetition returns them.
            asking = replace(request, is_repeat=True) if is_again else request
            return (self._keys.prefix, self._epochs.number, self._time(), *claim_arguments(asking))

        for _ in range(ATTEMPTS):
            epoch = self._epochs.number
            reply = await self._ask(self._scripts.claim, (self._keys.meta,), arguments)
            if not isinstance(reply, int):
                found, version = found_of(reply)
                self._epochs.confirm(version)
                return found
            self._leave_epoch(epoch)  # the epoch is another one
        raise StoreUnavailable(f"{self._address.shown} begins new epochs all the time; is it being restarted?")

    def renew(
        self, worker: str, record: bytes, holdings: Sequence[Holding], lease: Micros
    ) -> tuple[Micros, list[Renewed | None]]:
        """Extend the leases that are still held, and record the heartbeat. Blocking, for another thread.

        The record of a worker is `<started_at> <heartbeat_at> <record>`, in the partition `workers`.
        """
        self._check_open()
        return self._renewals.renew(worker, record, holdings, lease)

    # Hints

    def listen(self, on_hint: Callable[[bytes], None]) -> Callable[[], None]:
        """Call `on_hint` on the running event loop for each hint, from this process or another one, until stopped.

        An empty hint means that hints may have been missed: anything may have changed.
        """
        return self._hints.add(on_hint)

    # Checking

    async def check(self) -> Sequence[Finding]:
        """Check the server's settings: what they can lose, and what does not fit."""
        return await self._converse(self._checkup)

    def _checkup(self) -> Conversation[list[Finding]]:
        reply, lines = yield [packed("INFO"), packed("LRANGE", self._keys.of(LOG), 0, -1)]
        info = parsed_info(reply)
        settings = yield from inspection(info)
        return list(server.findings(self._address, settings, info, [] if isinstance(lines, ServerError) else lines))

    # Calls

    async def _ask(
        self, script: LuaScript, keys: Sequence[str], arguments: Callable[[bool], Sequence[Argument]]
    ) -> Any:
        """Run a script and return its reply. `arguments` is called for each attempt, with True for a repetition."""
        self._check_open()
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            connection = self._connection
            if connection is None or not connection.is_open:
                connection = await self._connected()
            pieces = arguments(failure is not None)
            if len(keys) > LARGE:
                command = await asyncio.to_thread(script.call, keys, pieces)
            else:
                command = script.call(keys, pieces)
            try:
                reply = await connection.send(command)
                if is_unknown_script(reply):
                    reply = await connection.send(script.whole_call(keys, arguments(failure is not None)))
            except ConnectionLost as error:
                failure = error
                continue
            except Silence as error:
                raise self._connector.translated(error) from error
            if isinstance(reply, ServerError):
                if is_lasting(reply):
                    connection.close()
                raise self._connector.translated(reply) from reply
            return reply
        assert failure is not None
        raise self._connector.translated(failure) from failure

    async def _converse(self, conversation: Callable[[], Conversation[T]]) -> T:
        """Execute a conversation that only reads."""
        self._check_open()
        connection = await self._connected()
        try:
            return await connection.converse(conversation())
        except (ConnectionLost, Silence, ServerError) as error:
            raise self._connector.translated(error) from error

    def _leave_epoch(self, epoch: int) -> None:
        """The namespace has another epoch. If this driver does not know it yet, a new connection finds out."""
        if self._epochs.number == epoch and self._connection is not None:
            self._connection.close()

    def _time(self) -> Argument:
        return "" if self._clock is None else self._clock.now()

    # The connection

    def _greeting(self) -> Conversation[None]:
        info = yield from handshake(self._address)
        yield from self._epochs.check(info)

    def _first_greeting(self) -> Conversation[None]:
        info = yield from handshake(self._address)
        # Before the epoch: nothing is written to a server that the store may not use.
        settings = yield from inspection(info)
        refuse_unsafe(self._address, settings)
        yield from self._epochs.check(info)
        self._log_settings(settings, has_identity=bool(run_id_of(info)))

    def _log_settings(self, settings: ServerSettings, *, has_identity: bool) -> None:
        """Log what the server may lose, and what it does not show."""
        shown = self._address.shown
        if not has_identity:
            _log.warning("%s %s", shown, identity_advice(self._address))
        if unknown := unknown_settings(settings):
            _log.warning(
                "%s does not show %s to this user, so the store could not check them; %s must be noeviction",
                shown,
                ", ".join(unknown),
                "maxmemory-policy",
            )
        if settings.loss:
            level = logging.INFO if settings.appendfsync == "everysec" and settings.is_appending else logging.WARNING
            _log.log(level, "%s %s", shown, settings.loss)

    async def _connected(self) -> LoopConnection:
        """Return the connection. If it is lost, all callers wait for the same new one."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        # One that is over may still be here. Its error, raised again without a pause, would stop the event loop if the
        # caller repeats its call until it works.
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect(), name="holdfast-redis-connect")
            self._connecting.add_done_callback(self._connect_ended)
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> LoopConnection:
        connection = self._connection = await self._connector.connect(on_break=self._note_break)
        with suppress(ConnectionLost, Silence, ServerError):  # the next call finds out
            await connection.converse(self._inspection())
        return connection

    def _inspection(self) -> Conversation[None]:
        """Check the settings again, and log it if they are no longer safe: the server may have been replaced.

        The store goes on. It would not save any run by giving up the results that its workers have in memory.
        """
        (info,) = yield [packed("INFO")]
        settings = yield from inspection(parsed_info(info))
        advice = unsafe(self._address, settings)
        if advice and advice != self._reported:
            _log.error("the server has other settings than when this process opened the store: %s", advice)
        self._reported = advice

    def _connect_ended(self, task: asyncio.Task[LoopConnection]) -> None:
        if self._connecting is task:
            self._connecting = None
        if not task.cancelled():
            task.exception()  # its callers get it, if there are any left

    def _note_break(self, error: Exception) -> None:
        connection = self._connection
        # Servers may close idle connections. If the server is gone, the next call finds out.
        if connection is not None and connection.was_busy:
            self._connector.lost(error, connection.opened_at)

    # Processes

    def _check_open(self) -> None:
        self._check_process()
        if self._pid is None:
            raise StoreUnavailable(f"the store {self._address.shown} is not open; call open() first")

    def _check_process(self) -> None:
        if self._pid is not None and os.getpid() != self._pid:
            raise StoreUnavailable(
                f"the store {self._address.shown} was opened in another process (pid {self._pid}); "
                "a fork does not copy the store's connections: open the store after the fork"
            )


# Without an open store: these begin no epoch and make no keys


_KEYS_AT_ONCE = 1_000
"""Number of keys of the database that one call examines, so that it does not stop the server for long."""


def erase(url: str) -> None:
    """Remove all keys of a namespace, for good. Blocking. No process may use the namespace meanwhile."""
    address = RedisAddress.of(url)
    _execute(address, _erasure(address.prefix))


def _erasure(prefix: str) -> Conversation[None]:
    cursor = b"0"
    while True:
        # The characters of a namespace have no meaning in a pattern.
        ((cursor, keys),) = yield from asked(packed("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", _KEYS_AT_ONCE))
        if keys:
            yield from asked(packed("UNLINK", *keys))
        if cursor == b"0":
            return


def _execute(address: RedisAddress, conversation: Conversation[T]) -> T:
    connector = RedisConnector(address, lambda: handshake(address))
    connection = connector.connect_blocking()
    try:
        return connection.converse(conversation)
    except (ConnectionLost, Silence, ServerError) as error:
        raise connector.translated(error) from error
    finally:
        connection.close()
