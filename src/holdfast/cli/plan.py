"""The plan of a pipeline, drawn as its steps in order with the cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.cli.output import cleaned
from holdfast.cli.table import Cell, Line
from holdfast.core.plan import PlannedState, PlannedStep, PlanProgress

_WIDTH = 100
_INDENT = 9
_ARROW = " → "

_GLYPHS: dict[PlannedState, tuple[str, str]] = {
    "done": ("✓", "good"),
    "undone": ("↶", "dim"),
    "current": ("▸", "wait"),
    "failed": ("✗", "bad"),
    "cancelled": ("✗", "bad"),
    "to_come": ("·", "dim"),
    "skipped": ("·", "dim"),
}


def plan_lines(progress: PlanProgress) -> Iterator[Line]:
    """Yield the steps of a run: `steps  ✓ create_account → ▸ wait_until_active → · report`."""
    return _wrapped([_cell(step) for step in progress.steps])


def step_lines(plan: Sequence[str]) -> Iterator[Line]:
    """Yield the steps of a plan without a run: `steps  create_account → report`."""
    return _wrapped([cleaned(name) for name in plan])


def _cell(step: PlannedStep) -> Cell:
    glyph, style = _GLYPHS[step.state]
    return f"{glyph} {cleaned(step.name)}", style


def _wrapped(cells: Sequence[Cell]) -> Iterator[Line]:
    """Yield lines of at most about 100 columns."""
    line: list[Cell] = []
    used = 0
    word = "steps"
    for number, cell in enumerate(cells):
        arrow = _ARROW if number + 1 < len(cells) else ""
        length = len(cell if isinstance(cell, str) else cell[0]) + len(arrow)
        if line and used + length > _WIDTH:
            yield [(word.ljust(_INDENT), "dim"), *line]
            line, used, word = [], 0, ""
        line += [cell, (arrow, "dim")] if arrow else [cell]
        used += length
    yield [(word.ljust(_INDENT), "dim"), *line]
