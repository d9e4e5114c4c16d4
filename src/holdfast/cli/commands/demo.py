"""`holdfast demo`."""

from __future__ import annotations

from dataclasses import replace

import click

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.output import Output
from holdfast.cli.session import opened, run_tidily
from holdfast_demo.acts import Acts
from holdfast_demo.processes import DemoProcesses

_USUAL_SECONDS = 15.0


@holdfast_command("demo", "holdfast demo", "holdfast demo --seconds 30 --keep")
@click.option("--seconds", type=click.FloatRange(min=1), default=_USUAL_SECONDS, help="About how long it takes.")
@click.option("--headless", is_flag=True, help="Print plain lines, even on a terminal.")
@click.option("--keep", is_flag=True, help="Keep the database, to look around afterwards.")
def command(out: Output, *, seconds: float, headless: bool, keep: bool) -> ExitCode:
    """Watch a workflow survive the death of its worker.

    An order goes through a checkout: a payment that fails once, a sleep, a wait for an approval, a child run. Then the
    demo kills the worker of a second order half-way. Everything happens in a temporary directory, which is removed at
    the end. The exit code is 1 if a finished step was repeated or a run did not succeed.
    """
    if out.settings.url is not None:
        raise Refusal("the demo creates its own database, so --url has no effect; --keep keeps that database")
    if headless:
        out = Output(replace(out.settings, color="never"))
    return run_tidily(_perform(out, pace=seconds / _USUAL_SECONDS, is_kept=keep))


async def _perform(out: Output, *, pace: float, is_kept: bool) -> ExitCode:
    with DemoProcesses(pace=pace, is_kept=is_kept) as stage:
        async with opened(replace(out.settings, url=stage.url), may_create=True) as hf, hf:
            return await Acts(out, stage, hf, pace=pace, is_kept=is_kept).perform()
