"""`holdfast resume`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import Output
from holdfast.cli.run_action import RunAction, RunChoice, choosing, do_to_runs
from holdfast.core.states import RunState

VERB = RunAction("resume", "resuming", "resumed", states=frozenset({RunState.PAUSED}), of="paused ")


@holdfast_command(
    "resume",
    "holdfast resume key:order-17",
    "holdfast resume --filter type:shop.* --dry-run",
)
@choosing(VERB)
@pass_output
def command(out: Output, runs: Sequence[str], words: Sequence[str], *, dry_run: bool, yes: bool) -> ExitCode:
    """Resume paused runs.

    The exit code is 6 if a named run was not paused.
    """
    return do_to_runs(out, VERB, RunChoice(runs, words, dry_run, yes), lambda runs, how: runs.resume(**how))
