"""`holdfast recover`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import Output
from holdfast.cli.run_action import RunAction, RunChoice, choosing, do_to_runs
from holdfast.core.recovery import RECOVERABLE

VERB = RunAction(
    "recover",
    "recovering",
    "recovered",
    states=RECOVERABLE,
    of="failed, cancelled or blocked ",
    reaches_others=True,
)


@holdfast_command(
    "recover",
    "holdfast recover key:order-17",
    'holdfast recover --filter "state:failed since:2h" --dry-run',
)
@choosing(VERB)
@pass_output
def command(out: Output, runs: Sequence[str], words: Sequence[str], *, dry_run: bool, yes: bool) -> ExitCode:
    """Retry runs that failed, were cancelled or are blocked, from the point where they failed.

    Results of successful steps are kept; steps that were undone are executed again. Failed children are recovered with
    their parent, so parents and children may be named in any order. The exit code is 6 if only one run is named and it
    is not failed, cancelled or blocked.
    """
    return do_to_runs(out, VERB, RunChoice(runs, words, dry_run, yes), lambda runs, how: runs.recover(**how))
