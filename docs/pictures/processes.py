"""Draw which process talks to what: `make pictures` writes processes-light.svg and processes-dark.svg."""

from __future__ import annotations

import sys
from pathlib import Path

WIDTH, HEIGHT = 860, 330
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

PALETTES = {
    "light": {
        "ink": "#1f2328", "dim": "#59636e", "line": "#818b98", "box": "#f6f8fa", "edge": "#d1d9e0",
        "store": "#dff3e4", "store_edge": "#4c9a67", "worker": "#ddebfb", "worker_edge": "#4a86c8",
    },
    "dark": {
        "ink": "#e6edf3", "dim": "#9198a1", "line": "#7d8590", "box": "#1c2128", "edge": "#3d444d",
        "store": "#14311f", "store_edge": "#3fa35f", "worker": "#12253b", "worker_edge": "#4d94e0",
    },
}  # fmt: skip

STORED = ("one SQLite file", "or your Postgres", "runs, history, inbox,", "timers, schedules")
BOXES = (
    # x, y, width, height, kind, title, lines
    (16, 16, 216, 72, "", "Your application", ("hf.start · hf.sync · run.result",)),
    (16, 108, 216, 72, "", "Any language", ("SQL: insert into holdfast.intent",)),
    (16, 200, 216, 72, "", "People", ("holdfast show · explain · recover",)),
    (336, 64, 188, 160, "store", "The store", STORED),
    (628, 16, 216, 72, "worker", "Worker process", ("workflows and steps",)),
    (628, 108, 216, 72, "worker", "Worker process", ("hundreds of runs each",)),
    (628, 200, 216, 72, "", "The world", ("APIs, mail, models",)),
)  # fmt: skip

ARROWS = (
    # x1, y1, x2, y2, both ways, label, label x, label y
    (232, 52, 336, 106, False, "start, send", 296, 60),
    (232, 144, 336, 144, False, "start, send", 284, 136),
    (232, 236, 336, 184, True, "look, control", 292, 248),
    (524, 106, 628, 52, True, "claim, commit", 572, 50),
    (524, 144, 628, 144, True, "claim, commit", 576, 136),
    (736, 180, 736, 200, False, "", 0, 0),
)


def picture(palette: dict[str, str]) -> str:
    """The picture in the colours of a palette."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"',
        f' font-family="{FONTS}" role="img" aria-label="Applications and workers talk only to the store">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"',
        f' orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{palette["line"]}"/></marker></defs>',
    ]
    for x1, y1, x2, y2, is_both, label, label_x, label_y in ARROWS:
        start = ' marker-start="url(#tip)"' if is_both else ""
        parts.append(
            f'<line x1="{x1 + 3}" y1="{y1}" x2="{x2 - 3}" y2="{y2}" stroke="{palette["line"]}" stroke-width="1.6" '
            f'marker-end="url(#tip)"{start}/>'
            if y1 == y2 or x1 != x2
            else f'<line x1="{x1}" y1="{y1 + 2}" x2="{x2}" y2="{y2 - 2}" stroke="{palette["line"]}" '
            f'stroke-width="1.6" marker-end="url(#tip)"/>'
        )
        if label:
            parts.append(_text(label_x, label_y, label, palette["dim"], 12))
    for x, y, width, height, kind, title, lines in BOXES:
        fill, edge = (palette[kind], palette[f"{kind}_edge"]) if kind else (palette["box"], palette["edge"])
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="{fill}" stroke="{edge}" '
            'stroke-width="1.4"/>'
        )
        middle = x + width / 2
        parts.append(_text(middle, y + 30, title, palette["ink"], 16, weight=600))
        parts += [_text(middle, y + 53 + 22 * row, line, palette["dim"], 12) for row, line in enumerate(lines)]
    note = "There is no holdfast server. Kill any process: another one takes over from what the store has."
    parts += [_text(WIDTH / 2, 310, note, palette["ink"], 14), "</svg>"]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, colour: str, size: int, *, weight: int = 400) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="middle" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{text}</text>'
    )


def main() -> None:
    """Write both pictures beside this file."""
    for name, palette in PALETTES.items():
        path = Path(__file__).with_name(f"processes-{name}.svg")
        path.write_text(picture(palette), encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
