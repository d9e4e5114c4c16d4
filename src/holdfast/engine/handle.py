"""Starts, which turn a request of a user into a run, and the handle on a run that was started or looked up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from holdfast.core.checkpoint import Created, LeaseRequest
from holdfast.core.clock import in_seconds, moment
from holdfast.core.codec import ANY, Codec, decode_any, encode_any
from holdfast.core.commands import SendMessages, Sent
from holdfast.core.errors import (
    ErrorRecord,
    InvalidRequest,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunNotFound,
    StoreUnavailable,
    Unreadable,
)
from holdfast.core.intent import (
    Call,
    StartOptions,
    check_actor,
    check_key,
    check_names,
    check_string,
    check_text,
    described,
    intent_fields,
)
from holdfast.core.location import check_name
from holdfast.core.model import DEFAULT_OPTIONS, Intent, MessageToRun, Run, new_id
from holdfast.core.news import Signal
from holdfast.core.questions import Details, ListMessages, RepliesTo
from holdfast.core.states import RunState
from holdfast.engine.answers import End
from holdfast.engine.controls import Controls
from holdfast.engine.explain import explanation
from holdfast.engine.info import AuditInfo, EntryInfo, MessageInfo, RunInfo, entry_infos
from holdfast.engine.private_loop import Facade, PrivateLoop, blocking
from holdfast.engine.session import LocalWorker, Session, SessionPart, database_of

R = TypeVar("R")


class RunHandle(Generic[R]):
    """A handle on one run: wait for its result, look at it, send it messages, control it.

    `hf.start` and `hf.run` return it. Every control takes `by`, the name of who asked, which the audit of the run
    keeps. A control returns True if it changed the run, and is safe to repeat.
    """

    def __init__(
        self,
        session: Session,
        run_id: str | None,
        codec: Codec[Any],
        *,
        key: str | None = None,
        created: bool = False,
    ) -> None:
        self._session = session
        self._id = run_id
        self._key = key
        self._codec = codec
        self._is_fresh = created
        self.created = created
        """True if the `start` that returned this handle created the run. False if it found the run by key or id."""

    @property
    def id(self) -> str:
        """The id of the run. A handle by key knows it only after its first call; before, this raises `RunNotFound`."""
        if self._id is None:
            raise RunNotFound(f"the run with key {self._key!r} has not been looked up yet; await run.info() first")
        return self._id

    @property
    def _controls(self) -> Controls:
        return Controls(self._session)

    async def result(self, timeout: float | timedelta | None = None) -> R:
        """Wait until the run ends and return its result. Raises `RunFailed` or `RunCancelled` if it did not succeed.

        Raises `TimeoutError` after `timeout` seconds, which says why the run has not ended; the run continues.
        """
        patience = _patience(timeout)
        run_id = await self._resolve()
        try:
            return await self._end_within(patience, run_id)
        except TimeoutError:
            if patience is None:
                raise
            why = "the store does not answer"
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_EXPLAIN_SECONDS):
                    why = await self.explain()
            raise TimeoutError(f"run {run_id} has not ended after {patience:g} s. {why}") from None

    async def _end_within(self, patience: float | None, run_id: str) -> R:
        ends = self._session.results
        is_fresh, self._is_fresh = self._is_fresh, False
        async with asyncio.timeout(patience):
            if not is_fresh:
                # Read the run first: an unknown run never ends, and a run that ended may have been reopened since.
                run = await self._readable_run()
                if run.state.is_end:
                    return self._value_of(run_id, End.of(run))
                ends.forget(run_id)
            end = await ends.wait(run_id, is_fresh=is_fresh)
        return self._value_of(run_id, end)

    def _value_of(self, run_id: str, end: End) -> R:
        if end.state is RunState.CANCELLED:
            raise RunCancelled(run_id, end.error.message if end.error else "")
        if end.state is RunState.FAILED:
            raise RunFailed(run_id, end.error or ErrorRecord(type="Unknown", message=""))
        result: R = self._codec.decode(end.result or "null", f"result of run {run_id}")
        return result

    async def _readable_run(self) -> Run:
        details = await self._details()
        if details.unreadable is not None and not details.run.state.is_end:
            raise Unreadable(f"run {details.run.id} cannot be read: {details.unreadable}")
        return details.run

    async def info(self) -> RunInfo:
        """Return the current state of the run, with its payload, result, error, times and waits."""
        return RunInfo.of(await self._details())

    async def history(self) -> Sequence[EntryInfo]:
        """Return the operations of the run, in the order in which they were recorded.

        A flow also has an entry `@turn/n` for each snapshot that it keeps.
        """
        run_id = (await self._details()).run.id
        return entry_infos(await self._session.store.history(run_id))

    async def audit(self) -> Sequence[AuditInfo]:
        """Return the events in the life of the run, oldest first: created, claimed, suspended, recovered and more."""
        run = (await self._details()).run
        return [AuditInfo.created(run), *(AuditInfo.of(fact) for fact in await self._session.store.audit(run.id))]

    async def explain(self) -> str:
        """Return one sentence that says why the run is not moving, and what it waits for."""
        store = self._session.store
        details = await self._details()
        return await explanation(store, details, await store.audit(details.run.id), await store.now())

    async def cancel(self, reason: str = "", *, force: bool = False, by: str = "") -> bool:
        """End the run as cancelled. Its steps are undone first, unless `force`. Returns False if it had ended already.

        `reason` is part of `RunCancelled`, which `result()` raises.
        """
        return await self._control("cancel", reason=reason, force=force, by=by)

    async def pause(self, reason: str = "", *, by: str = "") -> bool:
        """Stop the run until it is resumed. Returns False if it is paused already or has ended.

        Steps that execute right now are not interrupted. Sleeps and timeouts continue to count. `explain` shows the
        `reason`.
        """
        return await self._control("pause", reason=reason, by=by)

    async def resume(self, *, by: str = "") -> bool:
        """Let a paused run continue. Returns False if it is not paused."""
        return await self._control("resume", by=by)

    async def wake(self, *, by: str = "") -> bool:
        """Make a suspended run check its waits now, and retry a blocked run now.

        It shortens no sleep and no timeout. Returns False if there is nothing to wake.
        """
        return await self._control("wake", by=by)

    async def evict(self, *, by: str = "") -> bool:
        """Take the run from the worker that holds it, for any worker to continue. Returns False if none holds it.

        The worker cancels the steps that execute right now, and releases the run when they have ended, at the latest
        after its `grace_seconds`. Nothing is recorded about those steps, so they are executed again.
        """
        return await self._control("evict", by=by)

    async def rewind(self, location: str, *, force: bool = False, by: str = "") -> bool:
        """Drop the history of the run from a location on, and continue from there, even if the run had ended.

        The locations are those of `history`. Raises `RunBusy` while a worker holds the run, unless `force`, which takes
        the run away from that worker.
        """
        return await self._control("rewind", location=location, force=force, by=by)

    async def recover(self, *, force: bool = False, fail: bool = False, by: str = "") -> bool:
        """Retry what a failed, cancelled or blocked run failed at. What succeeded is kept and not executed again.

        Its failed children, and those cancelled with it, are recovered first. Returns False if the run is in another
        state. Raises `KeyConflict` if another run has its key by now. If a call raised, repeat it to continue. `force`
        also takes the run from a worker that holds it.

        With `fail`, a blocked run is given up: the error that blocked it undoes its steps and fails it. Returns False
        if the run is not blocked.
        """
        return await self._control("recover", force=force, fail=fail, by=by)

    async def fork(
        self,
        location: str,
        *,
        patch: Mapping[str, Any] | None = None,
        force: bool = False,
        id: str | None = None,
        by: str = "",
    ) -> RunHandle[R]:
        """Start a new run with the history of this one before a location.

        `patch` replaces recorded results, by location; that of a flow sets variables, by name. `id` is the id of the
        new run, to make the call safe to repeat. Raises `RunBusy` while a worker holds the run, unless `force`.
        """
        run_id = await self._resolve()
        made, is_new = await self._controls.fork(run_id, location, patch=patch, force=force, id=id, by=by)
        return RunHandle(self._session, made, self._codec, created=is_new)

    async def delete(self, *, force: bool = False, by: str = "") -> bool:
        """Hide the run at once and remove it a day later. A live run is cancelled, and nothing is undone.

        Raises `RunBusy` while a worker holds the run, unless `force`, which takes the run away from that worker. Its
        key is free at once. Waiting for the result of a run that was live raises `RunCancelled`.
        """
        return await self._control("delete", force=force, by=by)

    async def send(self, name: str, payload: Any = None, *, id: str | None = None, by: str = "") -> None:
        """Send the run a message. It is kept until the run receives it with `ctx.receive`.

        Raises `RunFinished` if the run has ended. With an `id`, sending is safe to repeat: the same id twice is one
        message.
        """
        message = self._message(name, payload, id)
        await self._session.open()
        (sent,) = await self._session.store.apply(SendMessages(messages=[message], by=check_actor(by)))
        self._check(sent, name)

    async def send_in(
        self, connection: object, name: str, payload: Any = None, *, id: str | None = None, by: str = ""
    ) -> None:
        """Send the run a message in your own transaction: it arrives when you commit that transaction."""
        message = self._message(name, payload, id)
        await self._session.open()
        (sent,) = await database_of(self._session, "send_in").send_in(connection, [message], by=check_actor(by))
        self._check(sent, name)

    def _message(self, name: str, payload: Any, id: str | None) -> MessageToRun:
        return MessageToRun(
            id=new_id() if id is None else check_text(id, "message id"),
            name=check_name(name, "message name"),
            payload=encode_any(payload, f"payload of message {name!r}"),
            run_id=self._id,
            key=None if self._id is not None else self._key,
        )

    def _check(self, sent: Sent, name: str) -> None:
        """Raise the error of a message that was refused."""
        if sent.refused == "unknown":
            raise self._not_found()
        if sent.refused == "finished":
            raise RunFinished(f"run {sent.run_id} has ended and takes no more messages; {name!r} was not sent")

    async def messages(self) -> Sequence[MessageInfo]:
        """Return the messages that the run has not received yet, in the order in which they arrived."""
        run_id = (await self._details()).run.id
        return [MessageInfo.of(arrival) for arrival in await self._session.store.catalog(ListMessages(run_id=run_id))]

    async def drop_message(self, id: str, *, by: str = "") -> bool:
        """Remove a message that the run has not received yet. Returns False if there is no such message.

        Raises `RunBusy` while a worker holds the run, because the worker may have read the message already. Sending the
        same `id` again within a day does not bring the message back.
        """
        return await self._controls.drop_message(await self._resolve(), id, by=by)

    async def request(
        self,
        name: str,
        payload: Any = None,
        *,
        timeout: float | timedelta | None = None,
        id: str | None = None,
        by: str = "",
    ) -> Any:
        """Send the run a message and wait for its reply (`message.reply`).

        Raises `RunFinished` if the run ends without one. Raises `TimeoutError` after `timeout` seconds; the message
        stays sent. A request with the same `id` gets the same reply, for a day.
        """
        message_id = new_id() if id is None else check_text(id, "message id")
        async with asyncio.timeout(_patience(timeout)):
            run_id = await self._resolve()
            try:
                await self.send(name, payload, id=message_id, by=by)
            except RunFinished:
                if not await self._session.store.changes(RepliesTo(messages=[(run_id, message_id)])):
                    raise
            text = await self._session.replies.wait(run_id, message_id)
        if text is None:
            raise RunFinished(f"run {run_id} has ended without a reply to {name!r}")
        return decode_any(text, f"reply to {name!r}")

    async def value(self, name: str, default: Any = None) -> Any:
        """Return a value that the run published with `ctx.set_value`, or `default` if there is none."""
        text = (await self._details()).values.get(check_string(name, "name"))
        return default if text is None else decode_any(text, f"value {name!r}")

    async def _control(self, verb: str, **parameters: Any) -> bool:
        return await self._controls.apply(Controls.request(verb, await self._resolve(), **parameters))

    async def _details(self) -> Details:
        await self._session.open()
        details = await self._session.store.get(self._id, key=self._key if self._id is None else None)
        if details is None:
            raise self._not_found()
        self._id = details.run.id
        return details

    async def _resolve(self) -> str:
        """Return the id of the run. A key is looked up once."""
        await self._session.open()
        return (await self._details()).run.id if self._id is None else self._id

    def _not_found(self) -> RunNotFound:
        if self._id is None:
            return RunNotFound(f"no run has the key {self._key!r}")
        meant = f"; did you mean hf.run(key={self._id[4:]!r})?" if self._id.startswith("key:") else ""
        return RunNotFound(f"there is no run {self._id}{meant}")

    def __repr__(self) -> str:
        return f"<run {self._id or f'with key {self._key!r}'}>"


class SyncRunHandle(Facade, Generic[R]):
    """A handle on one run, for code that blocks. `hf.sync.start` and `hf.sync.run` return it."""

    _target: RunHandle[R]

    def __init__(self, run: RunHandle[R], loop: PrivateLoop) -> None:
        super().__init__("run", run, loop)

    @property
    def id(self) -> str:
        """The id of the run. A handle by key knows it only after its first call; before, this raises `RunNotFound`."""
        return self._target.id

    @property
    def created(self) -> bool:
        """True if the `start` that returned this handle created the run. False if it found the run by key or id."""
        return self._target.created

    def result(self, timeout: float | timedelta | None = None) -> R:
        """Wait until the run ends and return its result. Raises `RunFailed` or `RunCancelled` if it did not succeed.

        Raises `TimeoutError` after `timeout` seconds; the run continues.
        """
        result: R = self._call("result", timeout)
        return result

    def fork(
        self,
        location: str,
        *,
        patch: Mapping[str, Any] | None = None,
        force: bool = False,
        id: str | None = None,
        by: str = "",
    ) -> SyncRunHandle[R]:
        """Start a new run with the history of this one before a location. `patch` replaces recorded results.

        The patch of a flow sets variables, by name.
        """
        return SyncRunHandle(self._call("fork", location, patch=patch, force=force, id=id, by=by), self._loop)

    info = blocking(RunHandle.info)
    history = blocking(RunHandle.history)
    audit = blocking(RunHandle.audit)
    explain = blocking(RunHandle.explain)
    cancel = blocking(RunHandle.cancel)
    pause = blocking(RunHandle.pause)
    resume = blocking(RunHandle.resume)
    wake = blocking(RunHandle.wake)
    evict = blocking(RunHandle.evict)
    rewind = blocking(RunHandle.rewind)
    recover = blocking(RunHandle.recover)
    delete = blocking(RunHandle.delete)
    messages = blocking(RunHandle.messages)
    drop_message = blocking(RunHandle.drop_message)
    send = blocking(RunHandle.send)
    send_in = blocking(RunHandle.send_in)
    request = blocking(RunHandle.request)
    value = blocking(RunHandle.value)

    def __repr__(self) -> str:
        return repr(self._target)


def handle_on(session: Session, run_id: str | None, key: str | None) -> RunHandle[Any]:
    """Return a handle on a run by its id or its key."""
    if (run_id is None) == (key is None):
        raise InvalidRequest("hf.run() takes either an id or key=…")
    check_string(run_id if key is None else key, "id" if key is None else "key")
    return RunHandle(session, run_id, ANY, key=key)


_EXPLAIN_SECONDS = 5.0


def _patience(timeout: float | timedelta | None) -> float | None:
    """Return a timeout in seconds, or None to wait forever."""
    return None if timeout is None or timeout == math.inf else in_seconds(timeout, "timeout")


# Starting runs


class Starter(SessionPart):
    """Creates runs in the store of a session."""

    async def start(self, workflow: object, args: tuple[Any, ...], options: StartOptions) -> RunHandle[Any]:
        """Create one run, or find the one that has its key or id."""
        intent, codec = self._intent(workflow, args, options)
        await self._session.open()
        created = await self._create_one(intent)
        (run,) = created.runs
        # A run with the id that was generated here is new, even if the store finds it: an earlier answer was lost.
        is_new = run.created or (run.run_id == intent.id and options.get("id") is None)
        return RunHandle(self._session, run.run_id, codec, created=is_new)

    async def start_in(
        self, connection: object, workflow: object, args: tuple[Any, ...], options: StartOptions
    ) -> RunHandle[Any]:
        """Create one run in a transaction of the user."""
        intent, codec = self._intent(workflow, args, options)
        await self._session.open()
        (run,) = (await database_of(self._session, "start_in").create_in(connection, [intent])).runs
        return RunHandle(self._session, run.run_id, codec, created=run.created)

    async def start_many(
        self, workflow: object, arguments: object, keys: object, options: StartOptions
    ) -> list[RunHandle[Any]]:
        """Create many runs in one transaction. With no `arguments`, `workflow` is a list of bound calls."""
        if options.get("key") is not None or options.get("id") is not None:
            raise InvalidRequest("start_many takes keys=[…], one for each run, instead of key= or id=")
        many = _calls(workflow, arguments)
        if keys is not None and (isinstance(keys, str) or not isinstance(keys, Sequence)):
            raise InvalidRequest(f"start_many: keys={keys!r:.80}: expected a list of strings, one for each run")
        if keys is not None and len(keys) != len(many):
            raise InvalidRequest(f"start_many got {len(many)} sets of arguments, but {len(keys)} keys")
        built = [self._intent(target, args, options) for target, args in many]
        intents = [intent for intent, _ in built]
        if keys is not None:
            intents = [replace(intent, key=check_key(key)) for intent, key in zip(intents, keys, strict=True)]
        await self._session.open()
        created = await self._session.store.create(intents)
        self._signal_starts(intents, created)
        return [
            RunHandle(self._session, run.run_id, codec, created=run.run_id == intent.id)
            for run, (intent, codec) in zip(created.runs, built, strict=True)
        ]

    async def _create_one(self, intent: Intent) -> Created:
        """Create a run. A worker of this process with a free slot gets its lease in the same commit."""
        store = self._session.store
        for worker in self._session.local_workers:
            request = worker.offer(intent.type)
            if request is not None:
                creating = asyncio.create_task(store.create([intent], request))
                # A plain callback, because runs are never driven from inside a task. Shielded, because the worker must
                # learn of its lease even if the caller is cancelled.
                creating.add_done_callback(partial(self._deliver_lease, worker, request, intent))
                return await asyncio.shield(creating)
        created = await store.create([intent])
        self._signal_starts([intent], created)
        return created

    def _deliver_lease(
        self, worker: LocalWorker, request: LeaseRequest, intent: Intent, creating: asyncio.Task[Created]
    ) -> None:
        if creating.cancelled() or isinstance(creating.exception(), StoreUnavailable):
            worker.recall(request)
        elif creating.exception() is not None:
            worker.accept((), 0)
        else:
            created = creating.result()
            self._signal_starts([intent], created)  # before the signal that the run was claimed
            worker.accept([run.lease for run in created.runs if run.lease is not None], created.now)

    def _signal_starts(self, intents: Sequence[Intent], created: Created) -> None:
        if not self._session.signals.wants("run.started"):
            return
        for intent, run in zip(intents, created.runs, strict=True):
            if run.created:
                self._session.signals.send(
                    Signal(
                        name="run.started",
                        at=moment(created.now),
                        run_id=run.run_id,
                        type=intent.type,
                        state=RunState.PENDING,
                        parent_id=intent.parent_id,
                        trace=intent.options.trace,
                    )
                )

    def _intent(self, workflow: object, args: tuple[Any, ...], options: StartOptions) -> tuple[Intent, Codec[Any]]:
        check_names(options, StartOptions, workflow, of="a run")
        type, payload, codec = described(workflow, args)
        known = self._session.registry.get(type)
        if known is not None:
            if isinstance(workflow, str):
                codec = known.result
            known.signature.decode(payload, f"payload of {type!r}")  # refuses a wrong payload now, not later
        fields = intent_fields(options, known or workflow) if options else {}
        id = fields.pop("id", None) or new_id()
        if (tracing := self._session.signals.tracing) is not None:
            lasting = fields.get("options", DEFAULT_OPTIONS)
            fields["options"] = replace(lasting, trace=tracing.of_start(type, id))
        return Intent(id=id, type=type, payload=payload, **fields), codec


def _calls(workflow: object, arguments: object) -> list[tuple[object, tuple[Any, ...]]]:
    """Return the workflow and the arguments of each run."""
    if arguments is None:
        if isinstance(workflow, (str, Call)) or not isinstance(workflow, Iterable):
            raise InvalidRequest(
                f"start_many({workflow!r:.80}): pass a list of arguments after it, a tuple for each run, "
                "or only a list of bound calls"
            )
        calls = list(workflow)
        if wrong := [call for call in calls if not isinstance(call, Call)]:
            raise InvalidRequest(
                f"start_many: {wrong[0]!r:.80} is not a bound call, such as checkout.bind(order='A-1')"
            )
        return [(call, ()) for call in calls]
    if isinstance(arguments, str) or not isinstance(arguments, Iterable):
        raise InvalidRequest(f"start_many: {arguments!r:.80} is not a list of arguments; pass a tuple for each run")
    return [(workflow, one if isinstance(one, tuple) else (one,)) for one in arguments]
