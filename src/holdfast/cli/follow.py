"""Following a run: a snapshot after each change, until the run ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from holdfast.app import Holdfast, session_of
from holdfast.cli.view import Snapshot
from holdfast.core.codec import decode_any, json_flaw
from holdfast.core.errors import RunNotFound, Unreadable
from holdfast.core.flow_revision import is_flow
from holdfast.core.hint import Hint
from holdfast.core.model import Entry
from holdfast.core.ports import Store
from holdfast.core.questions import Details, ListFlows
from holdfast.core.unreadable import joined
from holdfast.engine.explain import explanation
from holdfast.engine.flow_view import FlowView, flow_view
from holdfast.engine.info import AuditInfo, RunInfo, entry_infos
from holdfast.engine.plan import plan_progress

_LOOK_SECONDS = 0.5
_REST_SECONDS = 0.05


async def read(hf: Holdfast, run_id: str) -> Snapshot:
    """Return a snapshot of a run."""
    store = session_of(hf).store
    details = await store.get(run_id)
    if details is None:
        raise RunNotFound(f"there is no run {run_id}")
    facts = await store.audit(run_id)
    workers = await store.workers()
    try:
        entries, unreadable = await store.history(run_id), None
    except Unreadable as error:
        entries, unreadable = (), str(error)
    info = RunInfo.of(details)
    return Snapshot(
        info=replace(info, unreadable=joined([info.unreadable, unreadable])),
        entries=tuple(entry_infos(entries)),
        audit=(AuditInfo.created(details.run), *map(AuditInfo.of, facts)),
        values={name: None if json_flaw(text) else decode_any(text) for name, text in details.values.items()},
        workers={worker.id: worker.name for worker in workers},
        explanation=await explanation(store, details, facts, await store.now()),
        flow=await _flow(store, details, entries),
        plan=await plan_progress(store, details),
    )


async def _flow(store: Store, details: Details, entries: Sequence[Entry]) -> FlowView | None:
    """Return the view of a flow; None if the run is not one."""
    run = details.run
    if details.unreadable is not None:
        return None
    if not is_flow(entries) and (entries or not await store.catalog(ListFlows(type=run.type, limit=1))):
        return None
    return await flow_view(store, run, entries)


async def follow(hf: Holdfast, run_id: str, last: Snapshot | None = None) -> AsyncIterator[Snapshot]:
    """Yield snapshots of a run: one at once, unless it equals `last`, then one after each change until its end."""
    told = asyncio.Event()

    def hear(_: Hint) -> None:
        told.set()

    leave = session_of(hf).store.listen(hear)
    try:
        while True:
            told.clear()
            snapshot = await read(hf, run_id)
            if snapshot != last:
                yield snapshot
            last = snapshot
            if last.info.unreadable is not None or last.info.state.is_end:
                return
            await asyncio.sleep(_REST_SECONDS)
            # Hints may be lost, so poll as well.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await told.wait()
    finally:
        leave()
