"""Draw how many times faster holdfast is than each peer, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from benchmarks.versus.numbers import shown, times
from benchmarks.versus.results import Results

_COLOURS = ("#3b6fb6", "#7aa6d8", "#c8553d", "#4f9d69", "#a06cd5", "#d9a441", "#6b7280")
_WORKLOADS = ("throughput", "tasks", "step", "start", "message", "children", "parallel", "enqueue")

_LEFT, _RIGHT, _TOP = 280, 130, 96
_BAR, _GAP, _GROUP = 15, 3, 14
_WIDTH = 960
_SUBTITLE = "and what the peer reaches; medians of ratios, engines in turns, on the same store, on a logarithmic scale"
_FONT = 'font-family="system-ui, sans-serif" font-size="13"'


@dataclass(frozen=True)
class _Bar:
    ratio: float
    colour: str
    label: str


def drawing(results: Results) -> str:
    """Return the whole picture."""
    groups = list(_groups(results))
    bars = [bar for _, group in groups for bar in group]
    low, high = _range(bars)
    height = _TOP + sum(len(group) * (_BAR + _GAP) + _GROUP for _, group in groups) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(24, 32, "How many times faster holdfast is", 'font-size="19" font-weight="600"'),
        _text(
            24,
            53,
            _SUBTITLE,
            'fill="#555"',
        ),
        *_legend(results),
        *_grid(low, high, height),
        *_bars(groups, low, high),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _groups(results: Results) -> Iterator[tuple[str, list[_Bar]]]:
    peers = [engine for engine in results.engines if not engine.is_ours]
    for workload in results.workloads:
        if workload.name not in _WORKLOADS:
            continue
        for figure in workload.figures:
            group = []
            for engine, colour in zip(peers, _COLOURS, strict=False):
                ratio = results.ratio(workload, figure, engine)
                if ratio is not None:
                    value = shown(results.median(workload, figure, engine), figure.unit)
                    group.append(_Bar(ratio, colour, f"{times(ratio)} ({value})"))
            if group:
                yield figure.title, group


def _range(bars: list[_Bar]) -> tuple[float, float]:
    """Return the axis range: from the smallest ratio, if that is below 1, to a power of ten above all."""
    ratios = [1.0, 10.0, *(bar.ratio for bar in bars)]
    return min(ratios) * 0.9, 10.0 ** math.ceil(math.log10(max(ratios)))


def _x(ratio: float, low: float, high: float) -> float:
    share = math.log10(ratio / low) / math.log10(high / low)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _legend(results: Results) -> Iterator[str]:
    x = 24.0
    for engine, colour in zip((one for one in results.engines if not one.is_ours), _COLOURS, strict=False):
        yield f'<rect x="{x:.0f}" y="68" width="11" height="11" rx="2" fill="{colour}"/>'
        yield _text(x + 16, 78, engine.title, 'font-size="12"')
        x += 34 + 6.2 * len(engine.title)


def _grid(low: float, high: float, height: float) -> Iterator[str]:
    for exponent in range(math.ceil(math.log10(low)), round(math.log10(high)) + 1):
        ratio = 10.0**exponent
        x = _x(ratio, low, high)
        stroke = "#111" if exponent == 0 else "#ddd"
        yield f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - 30}" stroke="{stroke}"/>'
        yield _text(x, height - 14, f"{ratio:g}×", 'text-anchor="middle" fill="#555"')


def _bars(groups: list[tuple[str, list[_Bar]]], low: float, high: float) -> Iterator[str]:
    y = float(_TOP)
    for title, group in groups:
        middle = y + len(group) * (_BAR + _GAP) / 2 + 4
        yield _text(_LEFT - 12, middle, title, 'text-anchor="end"')
        for bar in group:
            begin, end = sorted((_x(1, low, high), _x(bar.ratio, low, high)))
            yield (
                f'<rect x="{begin:.1f}" y="{y:.1f}" width="{max(1.0, end - begin):.1f}" height="{_BAR}" rx="2" '
                f'fill="{bar.colour}"/>'
            )
            yield _text(end + 5, y + 12, bar.label, 'font-size="11" fill="#333"')
            y += _BAR + _GAP
        y += _GROUP


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
