"""The preview of a revision: what a rewind or fork would do, and the question whether to do it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.exits import Refusal
from holdfast.cli.output import Output
from holdfast.cli.table import Column, Table
from holdfast.core.model import Entry, Run
from holdfast.core.revision import open_children


async def read_run(hf: Holdfast, run_id: str) -> tuple[Run, Sequence[Entry], dict[str, Run]]:
    """A run, its history, and its open children."""
    details = await hf.store.get(run_id)
    assert details is not None, "it was looked up a moment ago"
    entries = await hf.store.history(run_id)
    found = [await hf.store.get(child_id) for child_id in open_children(entries)]
    return details.run, entries, {child.run.id: child.run for child in found if child is not None}


def check_can_ask(verb: str, *, dry_run: bool, yes: bool) -> None:
    """Refuse what should be asked for where nobody can be asked."""
    if not (yes or dry_run or sys.stdin.isatty()):
        raise Refusal(f"nobody can be asked here whether to {verb}; add --yes (or --dry-run to see what it would do)")


def show_entries(out: Output, entries: Sequence[Entry]) -> None:
    """What a revision is about. On stdout only if that is all that was asked for."""
    table = Table((Column("location"), Column("kind"), Column("state")))
    for entry in entries:
        table.rows.append({"location": entry.location, "kind": entry.kind.value, "state": entry.state.value})
    out.table(table)


def entry_json(entry: Entry) -> dict[str, Any]:
    return {"location": entry.location, "kind": entry.kind.value, "state": entry.state.value}


def is_agreed(out: Output, question: str, entries: Sequence[Entry], words: str) -> bool:
    """Ask a person who has seen what would happen."""
    for entry in entries:
        out.talk(f"  {entry.location}  {entry.kind.value}  {entry.state.value}")
    out.talk(words)
    return click.confirm(question, err=True)
