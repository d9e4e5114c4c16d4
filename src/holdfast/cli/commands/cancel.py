"""`holdfast cancel`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import Output
from holdfast.cli.run_action import RunAction, RunChoice, choosing, do_to_runs

VERB = RunAction("cancel", "cancelling", "cancelled", is_destructive=True)


@holdfast_command(
    "cancel",
    'holdfast cancel 01a1e122 --reason "ordered twice"',
    "holdfast cancel --filter state:suspended --filter type:shop.* --dry-run",
    'holdfast cancel --filter "tag.shop:x since:2h" --yes',
)
@choosing(VERB)
@click.option("--reason", default="", help="Stored with the run, and passed to its parent.")
@click.option("--force", is_flag=True, help="Do not roll back: run no undo functions.")
@pass_output
def command(
    out: Output, runs: Sequence[str], words: Sequence[str], reason: str, *, force: bool, dry_run: bool, yes: bool
) -> ExitCode:
    """Cancel runs. Each run rolls back (undoes its finished steps) and then ends as cancelled.

    Anything else that a cancelled run still does is not recorded.

    RUN is an id, the beginning of an id, or key:KEY. On a terminal, the command asks once for confirmation; elsewhere
    it needs --yes. The exit code is 6 if a named run had already ended.
    """
    choice = RunChoice(runs, words, dry_run, yes)
    return do_to_runs(out, VERB, choice, lambda runs, how: runs.cancel(reason, force=force, **how))
