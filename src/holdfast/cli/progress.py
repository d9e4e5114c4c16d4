"""The live progress of a run: a moving timeline, or one line for each change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from holdfast.cli.output import Output, cleaned, preview
from holdfast.cli.summary import STATE_STYLES, wait_words
from holdfast.cli.table import Cell, Line
from holdfast.cli.timeline import claim_words, is_takeover, label_of
from holdfast.cli.times import spoken
from holdfast.cli.view import GLYPHS, Snapshot, run_lines
from holdfast.core.model import EntryKind, EntryState
from holdfast.core.states import RunState
from holdfast.core.wire import as_json
from holdfast.engine.info import AuditInfo, EntryInfo

Draw = Callable[[Snapshot, datetime], Sequence[Line]]


class Progress:
    """Shows snapshots of one run, one after the other."""

    def __init__(self, out: Output, snapshot: Snapshot, draw: Draw | None = None) -> None:
        self.snapshot = snapshot
        self._out = out
        self._draw = draw or (lambda snapshot, now: run_lines(snapshot, now, out.width))
        self._told: set[str] = set()
        self._values: dict[str, str] = {}
        self._refresh: Callable[[], None] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._out.is_rich:
            live = self._out.terminal.live(lambda: self._draw(self.snapshot, datetime.now(UTC)))
            self._refresh = self._stack.enter_context(live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def show(self, snapshot: Snapshot) -> None:
        """Show a newer snapshot."""
        self.snapshot = snapshot
        if self._refresh is not None:
            self._refresh()
        elif self._out.is_json:
            self._write_json(snapshot)
        else:
            self._write_lines(snapshot)

    def _is_new(self, what: str) -> bool:
        if what in self._told:
            return False
        self._told.add(what)
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
