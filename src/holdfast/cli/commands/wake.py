"""`holdfast wake`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import Output
from holdfast.cli.run_action import RunAction, RunChoice, choosing, do_to_runs
from holdfast.core.states import RunState

_STATES = frozenset({RunState.SUSPENDED, RunState.BLOCKED, RunState.ROLLING_BACK})
VERB = RunAction("wake", "waking", "woken", states=_STATES, of="waiting ")


@holdfast_command(
    "wake",
    "holdfast wake key:order-17",
    'holdfast wake --filter "state:blocked type:shop.*" --dry-run',
)
@choosing(VERB)
@pass_output
def command(out: Output, runs: Sequence[str], words: Sequence[str], *, dry_run: bool, yes: bool) -> ExitCode:
    """Wake waiting runs now; blocked runs are tried again at once. Sleeps and retry delays do not get shorter.

    The exit code is 6 if a named run cannot be woken, because it is held, ready, paused or ended.
    """
    return do_to_runs(out, VERB, RunChoice(runs, words, dry_run, yes), lambda runs, how: runs.wake(**how))
