"""The report of `holdfast bench`: a line for each figure, or one JSON object with all of them."""

from __future__ import annotations

from holdfast.app import session_of
from holdfast.cli.output import Output
from holdfast.config.secret import scrubbed
from holdfast_bench.measures import MEASURES, Figure, registry, take_samples
from holdfast_bench.scratch_store import scratch_store

_AT_ONCE = 500


async def report(out: Output, seconds: float) -> None:
    """Measure the store of the settings for about `seconds`, and print the figures."""
    figures = await _measure(out, seconds / len(MEASURES))
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
                figure = await take_samples(hf, measure, seconds)
                figures.append(figure)
                if not out.is_json:
                    said, unit = measure.text_of(figure.middle), measure.unit
                    span = f"  ({measure.text_of(figure.worst)} to {measure.text_of(figure.best)})"
                    out.line(f"{measure.what:<{width}}  ", (f"{said:>8} {unit:<8}", "title"), (span, "dim"))
    return figures


def _json(figure: Figure) -> dict[str, float | int]:
    return {
        "median": figure.middle,
        "best": figure.best,
        "worst": figure.worst,
        "samples": len(figure.samples),
    }
