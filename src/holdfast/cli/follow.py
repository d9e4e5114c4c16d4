"""Following a run to its end: a snapshot after each change, its live progress, its result and the exit code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from holdfast.app import Holdfast, session_of
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import Cell, Line, Output, cleaned, preview, spoken
from holdfast.cli.summary import STATE_STYLES, wait_words
from holdfast.cli.timeline import claim_words, is_takeover, label_of
from holdfast.cli.view import GLYPHS, Snapshot, run_lines
from holdfast.core.codec import decode_any, json_flaw
from holdfast.core.errors import RunCancelled, RunFailed, RunNotFound, Unreadable
from holdfast.core.flow_revision import is_flow
from holdfast.core.model import Entry, EntryKind, EntryState
from holdfast.core.news import Hint
from holdfast.core.ports import Store
from holdfast.core.questions import Details, ListFlows
from holdfast.core.states import RunState
from holdfast.core.wire import as_json, joined
from holdfast.engine.explain import explanation, plan_progress
from holdfast.engine.flow_view import FlowView, flow_view
from holdfast.engine.info import AuditInfo, EntryInfo, RunInfo, entry_infos

_POLL_SECONDS = 0.5
_REST_SECONDS = 0.05

_EXIT_CODES = {
    RunState.SUCCEEDED: ExitCode.OK,
    RunState.FAILED: ExitCode.RUN_FAILED,
    RunState.CANCELLED: ExitCode.RUN_CANCELLED,
}

Draw = Callable[[Snapshot, datetime], Sequence[Line]]


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
    hinted = asyncio.Event()

    def on_hint(_: Hint) -> None:
        hinted.set()

    stop_listening = session_of(hf).store.listen(on_hint)
    try:
        while True:
            hinted.clear()
            snapshot = await read(hf, run_id)
            if snapshot != last:
                yield snapshot
            last = snapshot
            if last.info.unreadable is not None or last.info.state.is_end:
                return
            await asyncio.sleep(_REST_SECONDS)
            # Hints may be lost, so poll as well.
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await hinted.wait()
    finally:
        stop_listening()


@contextmanager
def show_progress(out: Output, snapshot: Snapshot, draw: Draw | None = None) -> Iterator[Progress]:
    """Yield the progress of a run. On a terminal, `draw` says what is drawn of a snapshot; by default everything."""
    progress = Progress(out, snapshot)
    if not out.is_rich:
        yield progress
        return
    draw = draw or (lambda snapshot, now: run_lines(snapshot, now, out.width))
    with out.terminal.live(lambda: draw(progress.snapshot, datetime.now(UTC))) as progress.refresh:
        yield progress


class Progress:
    """Shows snapshots of one run, one after the other."""

    def __init__(self, out: Output, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.refresh: Callable[[], None] | None = None
        self._out = out
        self._shown: set[str] = set()
        self._values: dict[str, str] = {}

    def show(self, snapshot: Snapshot) -> None:
        """Show a newer snapshot."""
        self.snapshot = snapshot
        if self.refresh is not None:
            self.refresh()
        elif self._out.is_json:
            self._write_json(snapshot)
        else:
            self._write_lines(snapshot)

    def _is_new(self, what: str) -> bool:
        if what in self._shown:
            return False
        self._shown.add(what)
        return True

    def _write_json(self, snapshot: Snapshot) -> None:
        for entry in snapshot.entries:
            if self._is_new(repr(entry)):
                self._out.event({"kind": "entry", "entry": entry})
        for name, value in self._new_values(snapshot):
            self._out.event({"kind": "value", "name": name, "value": value})
        # Renewals of the lease change these two fields all the time, and are not worth a line.
        if self._is_new(repr(replace(snapshot.info, ready_at=None, updated_at=snapshot.info.created_at))):
            self._out.event({"kind": "run", "run": snapshot.info})

    def _new_values(self, snapshot: Snapshot) -> Iterator[tuple[str, Any]]:
        """Yield the values that differ from the last snapshot. A value may return to an earlier one."""
        for name, value in snapshot.values.items():
            if self._values.get(name) != (text := as_json(value)):
                self._values[name] = text
                yield name, value

    def _write_lines(self, snapshot: Snapshot) -> None:
        for name, value in self._new_values(snapshot):
            self._out.line((" " * 12, "dim"), cleaned(f"  {name}: {preview(value)}"))
        for at, what, line in sorted(_news(snapshot), key=lambda news: news[0]):
            if self._is_new(what):
                self._out.line((f"{spoken(at - snapshot.info.created_at):>10}  ", "dim"), *line)


def _news(snapshot: Snapshot) -> Iterator[tuple[datetime, str, Line]]:
    """Yield all lines about a run: the time, an identity that tells the line from the others, and the text."""
    info = snapshot.info
    for fact in snapshot.audit:
        if (line := _fact_line(fact, snapshot.workers)) is not None:
            yield fact.at, f"{fact.event} {fact.at} {fact.data}", line
    for entry in snapshot.entries:
        if entry.finished_at is not None and entry.kind is not EntryKind.SNAPSHOT:
            yield entry.finished_at, f"done {entry.location}", _entry_line(entry)
    for wait in info.waits:
        words = wait_words(wait, max(wait.since, info.updated_at))
        yield wait.since, f"wait {wait.location} {wait.since}", [("… ", "wait"), words]


def _fact_line(fact: AuditInfo, workers: Mapping[str, str]) -> Line | None:
    match fact.event:
        case "created":
            return ["  created"]
        case "claimed":
            mark, style = ("†", "bad") if is_takeover(fact) else ("▸", "busy")
            return [(f"{mark} {claim_words(fact, workers)}", style)]
        case "retried":
            return [
                ("↻ ", "wait"),
                cleaned(f"{fact.data.get('location')} failed: {fact.data.get('error')}; trying again"),
            ]
        case "succeeded" | "failed" | "cancelled" | "blocked" | "paused":
            why = fact.data.get("error") or fact.data.get("reason")
            return [(f"■ {fact.event}", STATE_STYLES[RunState(fact.event)]), cleaned(f": {why}" if why else "")]
        case _:
            return None


def _entry_line(entry: EntryInfo) -> Line:
    glyph, style = GLYPHS[entry.state]
    assert entry.finished_at is not None
    line: list[Cell] = [(f"{glyph} ", style), cleaned(label_of(entry))]
    line.append((f"  {spoken(entry.finished_at - entry.started_at)}", "dim"))
    if entry.error is not None:
        line.append((f"  {cleaned(str(entry.error))}", "bad"))
    elif entry.state is EntryState.DONE and entry.result is not None:
        line.append((f"  → {preview(entry.result, 60)}", "dim"))
    return line


async def wait_for_end(hf: Holdfast, run_id: str, timeout: timedelta | None) -> RunInfo:
    """Wait until the run ends or the time is over, and return its info."""
    run = hf.run(run_id)
    with suppress(RunFailed, RunCancelled, TimeoutError):
        await run.result(None if timeout is None else timeout.total_seconds())
    return await run.info()


def outcome(info: RunInfo) -> dict[str, Any]:
    """Return the outcome of a run as JSON shows it, or its state if it has not ended."""
    return {"id": info.id, "state": info.state, "result": info.result, "error": info.error}


def finish(out: Output, info: RunInfo) -> ExitCode:
    """Print the result of a run, or the reason why there is none. For JSON output, the caller has printed it."""
    if info.state is RunState.SUCCEEDED and not out.is_json:
        out.item(info.result)
    elif info.state is RunState.FAILED:
        out.talk(f"run {info.id} failed: {cleaned(str(info.error))}; `holdfast show {info.id}` shows more")
    elif info.state is RunState.CANCELLED:
        reason = f": {cleaned(info.error.message)}" if info.error and info.error.message else ""
        out.talk(f"run {info.id} was cancelled{reason}")
    elif not info.state.is_end:
        out.talk(f"run {info.id} has not ended yet, it is {info.state.value}; `holdfast explain {info.id}` says why")
    return exit_code(info.state)


def exit_code(state: RunState) -> ExitCode:
    return _EXIT_CODES.get(state, ExitCode.STILL_GOING)
