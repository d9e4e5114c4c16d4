"""`holdfast bench`."""

from __future__ import annotations

import click

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.gc_settings import tune_for_runs
from holdfast.cli.output import Output
from holdfast.cli.session import run_tidily
from holdfast_bench.report import report


@holdfast_command(
    "bench",
    "holdfast bench",
    "holdfast --url postgresql://db/shop bench --seconds 30",
    "holdfast --url redis://db bench",
    "holdfast bench -o json",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="About how long it takes."
)
def command(out: Output, *, seconds: float) -> None:
    """Measure how fast a store is, on this machine and its disk or server.

    It works in a temporary store beside the real one: for SQLite in another file in the same directory, for Postgres in
    another schema, for Redis in another namespace of the same database. The temporary store is removed at the end, and
    the real store does not change. On a shared server, the benchmark uses capacity, and on Redis also memory, while it
    runs.
    """
    tune_for_runs()
    run_tidily(report(out, seconds))
