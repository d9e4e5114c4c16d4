"""`holdfast bench`."""

from __future__ import annotations

import click

from holdfast.app import session_of
from holdfast.cli.bench.measures import MEASURES, Figure, measured, registry
from holdfast.cli.bench.scratch_store import scratch_store
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.gc_settings import tune_for_runs
from holdfast.cli.output import Output
from holdfast.cli.session import run_tidily
from holdfast.config.secret import scrubbed

_AT_ONCE = 500


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
    figures = run_tidily(_measure(out, seconds / len(MEASURES)))
    if out.is_json:
        out.item({figure.measure.name: _json(figure) for figure in figures})


async def _measure(out: Output, seconds: float) -> list[Figure]:
    """Take one measurement after another, and print each figure as soon as it is known."""
    figures: list[Figure] = []
    width = max(len(measure.what) for measure in MEASURES)
    async with scratch_store(out.settings) as hf:
        out.talk(f"measuring in {scrubbed(session_of(hf).url)}, a temporary store that is removed at the end")
        hf.include(registry)
        async with hf.worker(concurrency=_AT_ONCE):
            for measure in MEASURES:
                figure = await measured(hf, measure, seconds)
                figures.append(figure)
                if not out.is_json:
                    said, unit = measure.said(figure.middle), measure.unit
                    span = f"  ({measure.said(figure.worst)} to {measure.said(figure.best)})"
                    out.line(f"{measure.what:<{width}}  ", (f"{said:>8} {unit:<8}", "title"), (span, "dim"))
    return figures


def _json(figure: Figure) -> dict[str, float | int]:
    return {
        "median": figure.middle,
        "best": figure.best,
        "worst": figure.worst,
        "samples": len(figure.samples),
    }
