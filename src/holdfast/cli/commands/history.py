"""`holdfast history`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output, cleaned, preview
from holdfast.cli.session import in_session
from holdfast.cli.table import Cell, Table
from holdfast.cli.times import spoken, stamp
from holdfast.cli.view import GLYPHS
from holdfast.core.model import EntryKind
from holdfast.engine.info import EntryInfo


@holdfast_command(
    "history",
    "holdfast history 01a1e122",
    "holdfast history key:order-17 -o jsonl",
)
@click.argument("run", shell_complete=completing.runs)
def command(out: Output, run: str) -> None:
    """List the recorded entries of a run, in the order in which they were committed.

    In a flow, an entry has the line of the program. The snapshots that the flow keeps are the entries @turn/1, @turn/2
    and so on. `holdfast rewind` and `holdfast fork` take the locations of both.
    """

    async def work(hf: Holdfast) -> None:
        entries = await hf.run(await find_run(hf, run)).history()
        out.listing(entries, _table(entries), "nothing is recorded yet")

    in_session(out.settings, work)


def _table(entries: Sequence[EntryInfo]) -> Table:
    has_lines = any(entry.line for entry in entries)
    return Table.of(
        (_row(entry, has_lines=has_lines) for entry in entries), numbers=("line", "attempts", "took"), cut="result"
    )


def _row(entry: EntryInfo, *, has_lines: bool) -> dict[str, Cell]:
    is_snapshot = entry.kind is EntryKind.SNAPSHOT  # it takes no time, and `attempts` is the number of its turn
    return {
        "location": cleaned(entry.location),
        **({"line": "" if entry.line is None else str(entry.line)} if has_lines else {}),
        "kind": entry.kind.value,
        "state": (entry.state.value, GLYPHS[entry.state][1]),
        "attempts": str(entry.attempts) if entry.attempts and not is_snapshot else "",
        "started": (stamp(entry.started_at), "dim"),
        "took": "" if is_snapshot else _took(entry),
        "result": _result(entry),
    }


def _took(entry: EntryInfo) -> str:
    return spoken(entry.finished_at - entry.started_at) if entry.finished_at else ""


def _result(entry: EntryInfo) -> Cell:
    if entry.unreadable is not None:
        return f"cannot be read: {cleaned(entry.unreadable)}", "bad"
    if entry.error is not None:
        return cleaned(str(entry.error)), "bad"
    return "" if entry.result is None else preview(entry.result, 120)
