"""Starting runs: turns a user's request into an intent, and intents into runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.core.checkpoint import Created, LeaseRequest
from holdfast.core.clock import moment
from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.core.intent import Call, StartOptions, check_key, check_names, described, intent_fields
from holdfast.core.model import DEFAULT_OPTIONS, Intent, new_id
from holdfast.core.news import Signal
from holdfast.core.states import RunState
from holdfast.engine.handle import RunHandle
from holdfast.engine.session import LocalWorker, SessionPart, database_of


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
