"""The view of one run: a header, the reason why it waits, its plan, the timeline, its program and the outcome."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.cli.output import Cell, Line, Row, ago, cleaned, preview, shortened, spoken, stamp, text_of
from holdfast.cli.summary import STATE_STYLES, state_cell, type_word, wait_words
from holdfast.cli.timeline import SILENT_KINDS, Item, Scale, Timeline, timeline
from holdfast.core.codec import encode_any
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import EntryKind, EntryState
from holdfast.core.states import RunState
from holdfast.engine.explain import PlannedState, PlanProgress
from holdfast.engine.flow_view import FlowView
from holdfast.engine.info import AuditInfo, EntryInfo, RunInfo
from holdfast.engine.namespaces import VERSION_SHOWN

_ROWS = 200
_INTERVENTIONS = 5
_PLAIN_BAR = 32
_LABEL_LIMIT = 28
_INSIDE = tuple(f"{os.sep}holdfast{os.sep}{layer}{os.sep}" for layer in ("core", "runner", "worker"))

GLYPHS: dict[EntryState | None, tuple[str, str]] = {
    EntryState.DONE: ("✓", "good"),
    EntryState.FAILED: ("✗", "bad"),
    EntryState.TIMED_OUT: ("✗", "wait"),
    EntryState.STARTED: ("…", "wait"),
    EntryState.RETRYING: ("↻", "wait"),
    None: ("†", "bad"),
}

_PLAN_WIDTH = 100
_PLAN_INDENT = 9
_ARROW = " → "

_PLAN_GLYPHS: dict[PlannedState, tuple[str, str]] = {
    "done": ("✓", "good"),
    "undone": ("↶", "dim"),
    "current": ("▸", "wait"),
    "failed": ("✗", "bad"),
    "cancelled": ("✗", "bad"),
    "to_come": ("·", "dim"),
    "skipped": ("·", "dim"),
}

_WHOLE = 60
"""Maximum number of lines of a program that is shown whole."""
_AROUND = 5
"""Number of lines around a mark of a longer program."""
_VALUE_LIMIT = 100

Marks = Mapping[int, tuple[str, str, Sequence[str]]]
"""A glyph, its style and sentences for each line that is marked."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All displayed data of a run, read at one moment. `workers` maps worker ids to names."""

    info: RunInfo = msgspec.field(name="run")
    explanation: str
    plan: PlanProgress | None = None
    values: dict[str, Any]
    entries: tuple[EntryInfo, ...] = msgspec.field(name="history")
    audit: tuple[AuditInfo, ...]
    flow: FlowView | None = None
    workers: dict[str, str]


def run_lines(snapshot: Snapshot, now: datetime, width: int | None, *, is_verbose: bool = False) -> list[Line]:
    """Return the whole view of a run as lines."""
    info = snapshot.info
    lines: list[Line] = [*_header(snapshot, now), ""]
    if info.unreadable is not None:
        return [*lines, ((f"cannot be read: {cleaned(info.unreadable)}", "bad"),)]
    lines += timeline_lines(snapshot, now, width)
    if snapshot.flow is not None:
        lines += [""] if lines[-1] else []
        lines += program_lines(snapshot.flow, is_terminal=width is not None, is_verbose=is_verbose)
    lines += divergence_lines(info)
    lines += _end(info, is_verbose=is_verbose)
    return lines


def _header(snapshot: Snapshot, now: datetime) -> Iterator[Line]:
    info = snapshot.info
    yield (type_word(info.type), "title"), "  ", (info.id, "dim"), "  ", state_cell(info.state)
    facts = [f"created {stamp(info.created_at)}, {ago(info.created_at, now)}"]
    if info.key is not None:
        facts.append(f"key {cleaned(info.key)}")
    facts += [f"{name}={value}" for name, value in info.tags.items()]
    if info.parent_id is not None:
        facts.append(f"child of {info.parent_id}")
    yield ((" · ".join(facts), "dim"),)
    if info.payload:
        yield ("payload  ", "dim"), preview(info.payload, 200)
    for name, value in snapshot.values.items():
        yield (f"{cleaned(name)}  ", "dim"), shortened(cleaned(encode_any(value)), 200)
    if info.unreadable is None and not info.state.is_end:
        yield ((cleaned(snapshot.explanation), STATE_STYLES[info.state]),)
    if snapshot.plan is not None:
        yield from plan_lines(snapshot.plan)
    yield from _interventions(snapshot.audit, now)


def _interventions(facts: Sequence[AuditInfo], now: datetime) -> Iterator[Line]:
    """Yield the latest controls of the run (such as pause or cancel) by people and programs, with their actors."""
    for fact in [fact for fact in facts if fact.is_asked_for][-_INTERVENTIONS:]:
        who = f" by {cleaned(fact.by)}" if fact.by else ""
        reason = f": {cleaned(str(fact.data['reason']))}" if fact.data.get("reason") else ""
        yield ((f"{fact.event.replace('_', ' ')} {ago(fact.at, now)}{who}{reason}", "dim"),)


def timeline_lines(snapshot: Snapshot, now: datetime, width: int | None) -> list[Line]:
    """Return a row for each entry: its state, its name, a bar, its duration and notes."""
    drawn = timeline(snapshot.info, snapshot.entries, snapshot.audit, snapshot.workers, now)
    items = drawn.items[-_ROWS:]
    labels = [cleaned(item.label) for item in items if item.kind is not None]
    label_width = min(_LABEL_LIMIT, max(map(len, labels), default=0))
    bar_width = _PLAIN_BAR if width is None else max(12, min(60, (width - label_width - 16) // 2))
    scale = Scale(drawn, bar_width)
    lines: list[Line] = []
    if len(items) < len(drawn.items):
        lines.append([(f"  ⋯ {len(drawn.items) - len(items)} earlier entries: holdfast history ⋯", "dim")])
    lines += [_row(item, drawn, scale, label_width, now) for item in items]
    return lines


def _row(item: Item, drawn: Timeline, scale: Scale, label_width: int, now: datetime) -> Line:
    if item.is_gap:
        return Row([(f"  ⋯ {spoken(item.end - item.begin)} ⋯", "dim")])
    glyph, style = GLYPHS[item.state]
    if item.kind is None:
        return Row([(f"{glyph} {item.label}", style), (f", {spoken(item.begin - drawn.begin)} after the start", "dim")])
    label = shortened(cleaned(item.label), label_width).ljust(label_width)
    bar, length = _bar(item, drawn, scale), f"  {spoken(item.end - item.begin):>10}"
    return Row([(f"{glyph} ", style), label, "  ", *bar, length, *_notes(item, now)])


def _bar(item: Item, drawn: Timeline, scale: Scale) -> list[Cell]:
    first, last = scale.columns(item.begin, item.end)
    _, style = GLYPHS[item.state]
    if item.kind in (EntryKind.STEP, EntryKind.TX):
        bar = "█" * (last - first)
    elif item.kind is EntryKind.CHILD:
        bar = "▒" * (last - first)
    else:
        bar = "─" * (last - first)
        style = style if item.is_open or item.state is not EntryState.DONE else "dim"
    if item.kind in SILENT_KINDS and drawn.is_folded(item.begin, item.end):
        bar = _with_fold(bar, spoken(item.end - item.begin))
    return [" " * first, (bar, style), " " * (scale.width - last)]


def _with_fold(bar: str, length: str) -> str:
    """Return a bar with `⋯ 2 h ⋯` in its middle, or only the dots if the bar is short."""
    text = next((text for text in (f" ⋯ {length} ⋯ ", "⋯") if len(text) <= len(bar)), "")
    left = (len(bar) - len(text)) // 2
    return bar[:left] + text + bar[left + len(text) :]


def _notes(item: Item, now: datetime) -> list[Cell]:
    notes: list[Cell] = []
    if item.attempts > 1:
        notes.append((f"  {item.attempts} attempts", "wait"))
    entry = item.entry
    if entry is not None and entry.unreadable is not None:
        notes.append((f"  cannot be read: {cleaned(entry.unreadable)}", "bad"))
    elif entry is not None and entry.error is not None:
        notes.append((f"  {cleaned(str(entry.error))}", "bad"))
    elif item.failures:
        notes.append((f"  first {cleaned(item.failures[0])}", "dim"))
    if item.wait is not None:
        notes.append((f"  {wait_words(item.wait, now)}", "wait"))
    elif entry is not None and entry.state is EntryState.DONE and entry.result is not None:
        notes.append((f"  → {preview(entry.result, 60)}", "dim"))
    if item.state is EntryState.TIMED_OUT:
        notes.append(("  timed out", "wait"))
    return notes


# The steps of a pipeline, in order, with the cursor


def plan_lines(progress: PlanProgress) -> Iterator[Line]:
    """Yield the steps of a run: `steps  ✓ create_account → ▸ wait_until_active → · report`."""
    cells: list[Cell] = []
    for step in progress.steps:
        glyph, style = _PLAN_GLYPHS[step.state]
        cells.append((f"{glyph} {cleaned(step.name)}", style))
    return _wrapped(cells)


def step_lines(plan: Sequence[str]) -> Iterator[Line]:
    """Yield the steps of a plan without a run: `steps  create_account → report`."""
    return _wrapped([cleaned(name) for name in plan])


def _wrapped(cells: Sequence[Cell]) -> Iterator[Line]:
    """Yield lines of at most about 100 columns."""
    line: list[Cell] = []
    used = 0
    word = "steps"
    for number, cell in enumerate(cells):
        arrow = _ARROW if number + 1 < len(cells) else ""
        length = len(text_of(cell)) + len(arrow)
        if line and used + length > _PLAN_WIDTH:
            yield [(word.ljust(_PLAN_INDENT), "dim"), *line]
            line, used, word = [], 0, ""
        line += [cell, (arrow, "dim")] if arrow else [cell]
        used += length
    yield [(word.ljust(_PLAN_INDENT), "dim"), *line]


# The program of a flow: lines with their numbers, marks at those that wait or failed, and the variables


def program_lines(view: FlowView, *, is_terminal: bool, is_verbose: bool = False) -> list[Line]:
    """Return the program of a run with a mark at each line that waits, and the variables."""
    version = "" if view.version is None else f", version {view.version[:VERSION_SHOWN]}"
    lines: list[Line] = [((f"flow {cleaned(view.type)}{version}: {view.note}", "dim"),)]
    if view.source is not None:
        marks = _marks(view, is_terminal=is_terminal)
        lines += numbered(view.source, marks, is_whole=is_verbose)
    if view.unreadable is not None:
        lines.append(((f"cannot be read: {cleaned(view.unreadable)}", "bad"),))
    lines += _variables(view)
    return lines


def numbered(source: str, marks: Marks, *, is_whole: bool = True) -> Iterator[Line]:
    """Yield the lines of a program with their numbers. Without `is_whole`, lines far from marks are left out."""
    texts = source.rstrip("\n").split("\n")
    width = len(str(len(texts)))
    shown = _shown(len(texts), marks, is_whole=is_whole)
    last = 0
    for number, text in enumerate(texts, start=1):
        if number not in shown:
            continue
        if number > last + 1:
            yield ((f"  {'⋯':>{width}}", "dim"),)
        last = number
        glyph, style, sentences = marks.get(number, (" ", "", ()))
        yield Row([(f"{glyph} ", style), (f"{number:>{width}}  ", "dim"), (cleaned(text), style)])
        indent = " " * (width + 4 + len(text) - len(text.lstrip()))
        for sentence in sentences:
            yield ((f"{indent}{cleaned(sentence)}", style),)
    if last < len(texts):
        yield ((f"  {'⋯':>{width}}", "dim"),)


def _shown(count: int, marks: Collection[int], *, is_whole: bool) -> Collection[int]:
    if is_whole or count <= _WHOLE:
        return range(1, count + 1)
    around = {number for line in marks for number in range(line - _AROUND, line + _AROUND + 1)}
    return {number for number in around if 1 <= number <= count} or range(1, _WHOLE + 1)


def _marks(view: FlowView, *, is_terminal: bool) -> Marks:
    marks: dict[int, tuple[str, str, list[str]]] = {}
    for wait in view.waits:
        glyph = "▶" if is_terminal else ">"
        since = "" if wait.since is None else f", since {stamp(wait.since)}"
        sentences = marks.setdefault(wait.line, (glyph, "wait", []))[2]
        if (sentence := f"{wait.sentence}{since}") not in sentences:
            sentences.append(sentence)
    if view.failed_at is not None:
        marks[view.failed_at.line] = ("✗", "bad", [f"failed here, in {view.failed_at.function}"])
    return marks


def _variables(view: FlowView) -> Iterator[Line]:
    if not view.waits and view.variables:
        yield from _listed("variables in its last snapshot", view.variables)
    frames = [frame for wait in view.waits for frame in wait.frames if frame.variables]
    for frame in frames:
        where = frame.function if len(frames) == 1 else f"{frame.function}, line {frame.line}"
        yield from _listed(f"variables of {where}", frame.variables)


def _listed(title: str, variables: Mapping[str, Any]) -> Iterator[Line]:
    yield ("",)
    yield ((title, "dim"),)
    width = max(map(len, variables))
    for name, value in variables.items():
        yield Row([f"  {name:<{width}}  ", preview(value, _VALUE_LIMIT)])


# Failures


def report_lines(report: str) -> Iterator[Line]:
    """Yield the lines of a report, each without control characters."""
    for line in report.splitlines():
        yield Row([(cleaned(line), "bad" if "  ≠  " in line else "")])


def divergence_lines(info: RunInfo) -> Iterator[Line]:
    """Yield the report of a divergence: history and code side by side."""
    error = info.error
    if info.state is not RunState.BLOCKED or error is None or error.type != "HistoryDiverged":
        return
    if not error.traceback.startswith("Traceback"):  # a divergence without a side-by-side report has a traceback
        yield ("",)
        yield from report_lines(error.traceback)


def _end(info: RunInfo, *, is_verbose: bool) -> Iterator[Line]:
    if info.finished_at is None:
        return
    took = spoken(info.finished_at - info.created_at)
    yield ("",)
    match info.state:
        case RunState.SUCCEEDED:
            yield (
                (f"succeeded after {took}", "good"),
                *((": ", preview(info.result, 2000)) if info.result is not None else ()),
            )
        case RunState.CANCELLED:
            reason = f": {cleaned(info.error.message)}" if info.error and info.error.message else ""
            yield ((f"cancelled after {took}{reason}", "bad"),)
        case _:
            yield ((f"{info.state.value} after {took}", "bad"),)
            if info.error is not None:
                yield from error_lines(info.error, is_verbose=is_verbose)


def error_lines(error: ErrorRecord, *, is_verbose: bool) -> Iterator[Line]:
    """Yield an error with its causes and the place where it was raised."""
    record: ErrorRecord | None = error
    word = ""
    while record is not None:
        yield ((f"  {word}{cleaned(str(record))}", "bad"),)
        lines = record.traceback.rstrip().splitlines()
        if not is_verbose:
            lines = _place(lines)
        for line in lines:
            yield ((f"    {cleaned(line)}", "dim"),)
        record, word = record.cause, "caused by "
    if not is_verbose and error.traceback:
        yield (("  -v shows the tracebacks", "dim"),)


def _place(traceback: Sequence[str]) -> list[str]:
    """Return the last line of user code in a traceback, with its file and line number."""
    places = [
        number
        for number, line in enumerate(traceback)
        if line.startswith("  File ") and not any(inside in line for inside in _INSIDE)
    ]
    return [line.strip() for line in traceback[places[-1] : places[-1] + 2]] if places else []
