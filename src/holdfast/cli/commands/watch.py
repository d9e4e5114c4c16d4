"""`holdfast watch`."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode
from holdfast.cli.follow import follow, read
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output
from holdfast.cli.progress import Progress
from holdfast.cli.run_result import exit_code
from holdfast.cli.session import in_session
from holdfast.cli.times import LENGTH


@holdfast_command(
    "watch",
    "holdfast watch 01a1e122",
    "holdfast watch key:order-17 --timeout 10m",
)
@click.argument("run", shell_complete=completing.runs)
@click.option("--timeout", type=LENGTH, help="Stop watching after this time (exit code 12).")
def command(out: Output, run: str, timeout: timedelta | None) -> ExitCode:
    """Follow a run until it ends.

    On a terminal it shows a live timeline. Elsewhere it prints one line for each change, with --json one line of JSON.
    The exit code follows the outcome: 0 succeeded, 10 failed, 11 cancelled.
    """

    async def work(hf: Holdfast) -> ExitCode:
        run_id = await find_run(hf, run)
        first = await read(hf, run_id)
        try:
            with Progress(out, first) as progress:
                progress.show(first)  # however short the timeout is, it shows how the run stands
                async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                    async for snapshot in follow(hf, run_id, last=first):
                        progress.show(snapshot)
        except TimeoutError:
            out.talk(f"run {run_id} has not ended yet; `holdfast explain {run_id}` says why")
            return ExitCode.STILL_GOING
        return exit_code(progress.snapshot.info.state)

    return in_session(out.settings, work)
