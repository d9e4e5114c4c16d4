"""The preview of a revision: shows what a rewind or fork would do, and asks for confirmation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from holdfast.cli.exits import Refusal
from holdfast.cli.output import Output
from holdfast.cli.table import Table
from holdfast.core.model import Entry


def check_can_ask(verb: str, *, dry_run: bool, yes: bool) -> None:
    """Refuse a command that needs a confirmation if stdin is not a terminal."""
    if not (yes or dry_run or sys.stdin.isatty()):
        raise Refusal(
            f"stdin is not a terminal, so `{verb}` cannot ask for confirmation; add --yes "
            "(or --dry-run to see what it would do)"
        )


def show_entries(out: Output, entries: Sequence[Entry]) -> None:
    """Write the entries of a revision to stdout. Only for --dry-run, where they are the result."""
    out.table(Table.of(map(entry_json, entries)))


def entry_json(entry: Entry) -> dict[str, Any]:
    return {"location": entry.location, "kind": entry.kind.value, "state": entry.state.value}


def is_agreed(out: Output, question: str, entries: Sequence[Entry], words: str) -> bool:
    """Show what would happen, and ask for confirmation."""
    for entry in entries:
        out.talk(f"  {entry.location}  {entry.kind.value}  {entry.state.value}")
    out.talk(words)
    return click.confirm(question, err=True)
