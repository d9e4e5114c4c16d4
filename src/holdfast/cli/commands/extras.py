"""Commands whose code is in packages of their own: `demo` and `bench`."""

from __future__ import annotations

from dataclasses import replace

import click

from holdfast.cli.command import command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.output import Output
from holdfast.cli.session import opened, run_tidily, tune_for_runs

_USUAL_SECONDS = 15.0


@command("demo", "holdfast demo", "holdfast demo --seconds 30 --keep")
@click.option("--seconds", type=click.FloatRange(min=1), default=_USUAL_SECONDS, help="About how long it takes.")
@click.option("--headless", is_flag=True, help="Print plain lines, even on a terminal.")
@click.option("--keep", is_flag=True, help="Keep the database, to look around afterwards.")
def demo(out: Output, *, seconds: float, headless: bool, keep: bool) -> ExitCode:
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
    from holdfast_demo.acts import Acts
    from holdfast_demo.processes import DemoProcesses

    with DemoProcesses(pace=pace, is_kept=is_kept) as stage:
        async with opened(replace(out.settings, url=stage.url), may_create=True) as hf, hf:
            return await Acts(out, stage, hf, pace=pace, is_kept=is_kept).perform()


@command(
    "bench",
    "holdfast bench",
    "holdfast --url postgresql://db/shop bench --seconds 30",
    "holdfast --url redis://db bench",
    "holdfast bench -o json",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="About how long it takes."
)
def bench(out: Output, *, seconds: float) -> None:
    """Measure how fast a store is, on this machine and its disk or server.

    It works in a temporary store beside the real one: for SQLite in another file in the same directory, for Postgres in
    another schema, for Redis in another namespace of the same database. The temporary store is removed at the end, and
    the real store does not change. On a shared server, the benchmark uses capacity, and on Redis also memory, while it
    runs.
    """
    from holdfast_bench.report import report

    tune_for_runs()
    run_tidily(report(out, seconds))
