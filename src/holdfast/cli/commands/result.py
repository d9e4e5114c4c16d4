"""`holdfast result`."""

from __future__ import annotations

from datetime import timedelta

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output
from holdfast.cli.run_result import finish, outcome, wait_for_end
from holdfast.cli.session import in_session
from holdfast.cli.times import LENGTH


@holdfast_command(
    "result",
    "holdfast result 01a1e122",
    "holdfast result key:order-17 --wait --timeout 60",
)
@click.argument("run", shell_complete=completing.runs)
@click.option("--wait", is_flag=True, help="Wait for the end of the run.")
@click.option("--timeout", type=LENGTH, help="With --wait: stop waiting after this time.")
def command(out: Output, run: str, *, wait: bool, timeout: timedelta | None) -> ExitCode:
    """Print the result of a run as JSON.

    The exit code follows the outcome: 0 succeeded, 10 failed, 11 cancelled, 12 not ended yet.
    With --json it prints the whole outcome: id, state, result and error.
    """
    if timeout is not None and not wait:
        raise Refusal("--timeout works only with --wait; add --wait")

    async def work(hf: Holdfast) -> ExitCode:
        run_id = await find_run(hf, run)
        info = await (wait_for_end(hf, run_id, timeout) if wait else hf.run(run_id).info())
        if out.is_json:
            out.item(outcome(info))
        return finish(out, info)

    return in_session(out.settings, work)
