"""`holdfast delete`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import Output
from holdfast.cli.run_action import RunAction, RunChoice, choosing, do_to_runs
from holdfast.core.states import RunState

VERB = RunAction("delete", "deleting", "deleted", states=frozenset(RunState), of="", is_destructive=True)


@holdfast_command(
    "delete",
    "holdfast delete 01a1e122",
    'holdfast delete --filter "type:shop.* state:failed until:2030-01-31" --dry-run',
    "holdfast delete key:order-17 --force --yes",
)
@choosing(VERB)
@click.option("--force", is_flag=True, help="Also delete a run that a worker holds; the worker loses it.")
@pass_output
def command(
    out: Output, runs: Sequence[str], words: Sequence[str], *, force: bool, dry_run: bool, yes: bool
) -> ExitCode:
    """Delete runs. They disappear at once, and their data is removed a day later. There is no way back.

    A run that has not ended is cancelled without a rollback; its children follow their close policy. The key of the run
    becomes free. `holdfast ls deleted:true` lists the run until it is removed.

    RUN is an id, the beginning of an id, or key:KEY. On a terminal, the command asks once for confirmation; elsewhere
    it needs --yes. The exit code is 6 if a named run was not deleted because a worker holds it.
    """
    choice = RunChoice(runs, words, dry_run, yes)
    return do_to_runs(out, VERB, choice, lambda runs, how: runs.delete(force=force, **how))
