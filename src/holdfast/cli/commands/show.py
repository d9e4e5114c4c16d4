"""`holdfast show`."""

from __future__ import annotations

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.follow import read
from holdfast.cli.lookup import find_run, store_now
from holdfast.cli.output import Output
from holdfast.cli.session import in_session
from holdfast.cli.view import run_lines


@holdfast_command(
    "show",
    "holdfast show 01a1e122",
    "holdfast show key:order-17 --json",
)
@click.argument("run", shell_complete=completing.runs)
def command(out: Output, run: str) -> None:
    """Show one run: its state, why it waits, its history.

    RUN is an id, the beginning of an id, or key:KEY. Each entry of the history has a line: a bar for a step, a thin
    line for a wait, its duration and its attempts. A flow shows its program with a mark at each line that waits, and
    its variables. -v shows tracebacks, and all lines of a long program.
    """

    async def work(hf: Holdfast) -> None:
        snapshot = await read(hf, await find_run(hf, run))
        if out.is_json:
            out.item(snapshot)
        else:
            is_verbose = out.settings.verbosity > 0
            out.lines(run_lines(snapshot, await store_now(hf), out.width, is_verbose=is_verbose))

    in_session(out.settings, work)
