"""`holdfast history`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output, cleaned, preview
from holdfast.cli.render import entry_json
from holdfast.cli.session import in_session
from holdfast.cli.table import Cell, Column, Table
from holdfast.cli.times import spoken, stamp
from holdfast.cli.view import GLYPHS
from holdfast.engine.info import EntryInfo


@holdfast_command(
    "history",
    "holdfast history 01a1e122",
    "holdfast history key:order-17 -o jsonl",
)
@click.argument("run", shell_complete=completing.runs)
@pass_output
def command(out: Output, run: str) -> None:
    """List the recorded entries of a run, in the order in which they were committed."""

    async def work(hf: Holdfast) -> None:
        entries = await hf.run(await find_run(hf, run)).history()
        if out.is_json:
            out.items([entry_json(entry) for entry in entries])
        else:
            out.table(_table(entries))
            if not entries:
                out.talk("nothing is recorded yet")

    in_session(out.settings, work)


def _table(entries: Sequence[EntryInfo]) -> Table:
    columns = (
        Column("location"),
        Column("kind"),
        Column("state"),
        Column("attempts", is_number=True),
        Column("started"),
        Column("took", is_number=True),
        Column("result", may_be_cut=True),
    )
    table = Table(columns)
    for entry in entries:
        table.rows.append(
            {
                "location": cleaned(entry.location),
                "kind": entry.kind.value,
                "state": (entry.state.value, GLYPHS[entry.state][1]),
                "attempts": str(entry.attempts) if entry.attempts else "",
                "started": (stamp(entry.started_at), "dim"),
                "took": spoken(entry.finished_at - entry.started_at) if entry.finished_at else "",
                "result": _result(entry),
            }
        )
    return table


def _result(entry: EntryInfo) -> Cell:
    if entry.unreadable is not None:
        return f"cannot be read: {cleaned(entry.unreadable)}", "bad"
    if entry.error is not None:
        return cleaned(str(entry.error)), "bad"
    return "" if entry.result is None else preview(entry.result, 120)
