"""`holdfast pause`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import Output
from holdfast.cli.run_action import RunAction, RunChoice, choosing, do_to_runs
from holdfast.core.states import LIVE, RunState

VERB = RunAction("pause", "pausing", "paused", states=LIVE - {RunState.PAUSED})


@holdfast_command(
    "pause",
    'holdfast pause key:order-17 --reason "the bank is closed"',
    "holdfast pause --filter type:shop.* --yes",
)
@choosing(VERB)
@click.option("--reason", default="", help="Stored with the run; `explain` shows it.")
@pass_output
def command(
    out: Output, runs: Sequence[str], words: Sequence[str], reason: str, *, dry_run: bool, yes: bool
) -> ExitCode:
    """Pause runs until they are resumed. Messages and events that arrive meanwhile wait for them.

    A step that is executing is not interrupted: its run pauses when the step is done.
    The exit code is 6 if a named run had ended or was already paused.
    """
    return do_to_runs(out, VERB, RunChoice(runs, words, dry_run, yes), lambda runs, how: runs.pause(reason, **how))
