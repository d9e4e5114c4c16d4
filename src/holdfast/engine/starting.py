"""Starting runs: turns a user's request into an intent, and intents into runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypedDict

from msgspec.structs import replace

from holdfast.core.checkpoint import Created, LeaseRequest
from holdfast.core.clock import instant, moment
from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.core.ids import new_id
from holdfast.core.intent import (
    check_delay,
    check_id,
    check_key,
    check_length,
    check_priority,
    check_tags,
    described,
    refuse_options,
    run_options,
)
from holdfast.core.model import DEFAULT_PRIORITY, Intent, Reuse, Undelivered
from holdfast.core.signals import Signal
from holdfast.core.startable import Call
from holdfast.core.states import RunState
from holdfast.engine.capabilities import database_of
from holdfast.engine.handle import RunHandle
from holdfast.engine.session import LocalWorker, Session


class StartOptions(TypedDict, total=False):
    """The options of a run: keywords of `hf.start`, `hf.start_many`, `hf.start_in` and `hf.execute`."""

    key: str | None
    """Makes the start safe to repeat. A second start with the same key and payload returns the first run.

    With another type or payload it raises `KeyConflict`.
    """
    reuse: Reuse
    """Rule for a new run with the key of an old one: `never` (default), `after_failure` or `after_end`.

    A cancelled run counts as failed.
    """
    priority: int
    """0 to 255, lower first. Default: 100."""
    delay: float | timedelta
    """Seconds or a timedelta to wait before the run begins."""
    ready_at: datetime | None
    """The moment before which the run does not begin, instead of `delay`. UTC unless it has a zone."""
    tags: Mapping[str, str] | None
    """Names and values to search for, and to limit by: `{"tenant": "acme"}`."""
    id: str | None
    """An id of your own for the run. Default: a new UUID."""
    max_run: float | timedelta | None
    """Seconds or a timedelta after which a worker cancels the run, counted from when it may begin. Default: no limit.

    A paused run, and a run without a worker for its type, is cancelled when a worker has it again.
    """
    max_suspend: float | timedelta | None
    """Seconds or a timedelta after which one suspension of the run cancels it. Default: no limit."""
    undelivered: Undelivered
    """Policy for messages that the run never received: `discard` (default), or `dead_letter`."""
    retention: float | timedelta | None
    """Seconds or a timedelta for which the run is kept after its end.

    Default: the retention of its type, else that of the worker.
    """


class Starter:
    """Creates runs in the store of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

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
        self._tell_started(intents, created)
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
                creating.add_done_callback(partial(self._hand_over, worker, request, intent))
                return await asyncio.shield(creating)
        created = await store.create([intent])
        self._tell_started([intent], created)
        return created

    def _hand_over(
        self, worker: LocalWorker, request: LeaseRequest, intent: Intent, creating: asyncio.Task[Created]
    ) -> None:
        if creating.cancelled() or isinstance(creating.exception(), StoreUnavailable):
            worker.recall(request)
        elif creating.exception() is not None:
            worker.accept((), 0)
        else:
            created = creating.result()
            self._tell_started([intent], created)  # before the signal that the run was claimed
            worker.accept([run.lease for run in created.runs if run.lease is not None], created.now)

    def _tell_started(self, intents: Sequence[Intent], created: Created) -> None:
        if not self._session.signals.wants("run.started"):
            return
        for intent, run in zip(intents, created.runs, strict=True):
            if run.created:
                self._session.signals.give(
                    Signal(
                        name="run.started",
                        at=moment(created.now),
                        run_id=run.run_id,
                        type=intent.type,
                        state=RunState.PENDING,
                        trace=intent.options.trace,
                    )
                )

    def _intent(self, workflow: object, args: tuple[Any, ...], options: StartOptions) -> tuple[Intent, Codec[Any]]:
        if options.keys() - StartOptions.__annotations__.keys():
            target = workflow.target if isinstance(workflow, Call) else workflow
            refuse_options(options, StartOptions.__annotations__, target, of="a run")
        type, payload, codec = described(workflow, args)
        known = self._session.registry.get(type)
        if known is not None:
            if isinstance(workflow, str):
                codec = known.result
            known.signature.decode(payload, f"payload of {type!r}")  # refuses a wrong payload now, not later
        key, ready_at, run_id = options.get("key"), options.get("ready_at"), options.get("id")
        delay = check_delay(options.get("delay", 0))
        if delay and ready_at is not None:
            raise InvalidRequest("delay= and ready_at= both set the start of the run; pass only one of them")
        id = new_id() if run_id is None else check_id(run_id)
        lasting = run_options(
            max_run=options.get("max_run"),
            max_suspend=options.get("max_suspend"),
            undelivered=options.get("undelivered", "discard"),
        )
        if (tracing := self._session.signals.tracing) is not None:
            lasting = replace(lasting, trace=tracing.of_start(type, id))
        intent = Intent(
            id=id,
            type=type,
            payload=payload,
            key=None if key is None else check_key(key),
            reuse=_check_reuse(options.get("reuse", "never")),
            priority=check_priority(options.get("priority", DEFAULT_PRIORITY)),
            start_at=None if ready_at is None else instant(ready_at, "ready_at"),
            delay=delay,
            tags=check_tags(options.get("tags")),
            retention=check_length(options.get("retention"), "retention"),
            options=lasting,
        )
        return intent, codec


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


def _check_reuse(reuse: Reuse) -> Reuse:
    if reuse not in ("never", "after_failure", "after_end"):
        raise InvalidRequest(f"reuse={reuse!r}: expected 'never', 'after_failure' or 'after_end'")
    return reuse
