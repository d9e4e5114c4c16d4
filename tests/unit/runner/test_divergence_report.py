"""The report of a divergence shows history and code side by side."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from holdfast import Context
from holdfast.core.checkpoint import Block
from holdfast.core.model import Entry, EntryKind, EntryState
from holdfast.runner.divergence import ADVICE, hints, report
from tests.unit.runner.turn_rig import Rig, evict_turns, step

__all__ = ["evict_turns"]

pytestmark = pytest.mark.usefixtures("evict_turns")


def table(text: str) -> list[str]:
    """Return the lines of a report that show both sides."""
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("  recorded  "))
    return lines[begin : lines.index("", begin)]


def test_matching_operations_share_a_line_and_the_others_are_side_by_side() -> None:
    entries = [
        step("charge", 1),
        step("pack", 2),
        Entry(location="ship", kind=EntryKind.CHILD, state=EntryState.STARTED),
    ]
    text = report("It does not fit", entries, {"pack", "ship"}, {"wrap": EntryKind.STEP})
    assert text.splitlines()[0] == "It does not fit."
    assert table(text) == [
        "  recorded                      asked for by the code now",
        "  -------------------------     -------------------------",
        "  1  charge  step   done        charge  step",
        "  2  pack    step   done     ≠  wrap    step",
        "  -  ship    child  started  ≠",
    ]
    assert text.endswith("\n".join(ADVICE))


def test_a_new_operation_is_next_to_the_first_missing_entry() -> None:
    entries = [step("charge", 1), step("pack", 2), step("ship", 3)]
    text = report("It does not fit", entries, {"charge", "ship"}, {"pack": EntryKind.STEP, "bill": EntryKind.STEP})
    assert table(text)[2:] == [
        "  1  charge  step  done  ≠  bill  step",
        "  2  pack    step  done     pack  step",
        "  3  ship    step  done  ≠",
    ]


def test_the_pair_that_differs_comes_first_and_the_lines_to_paste_last() -> None:
    text = report(
        "It does not fit",
        [step("charge", 1)],
        {"charge"},
        {},
        pair=("charge (step)", None),
        hints=('ctx.removed("charge", "step")',),
    )
    assert text.splitlines()[:4] == ["It does not fit.", "", "  recorded:   charge (step)", "  requested:  nothing"]
    assert text.splitlines()[-1] == '    ctx.removed("charge", "step")'


VERSION = 'if ctx.version("{}", 2) == 1:  # the old code; else the new code'
REMOVED = "ctx.removed({})  # at its old place, if you removed it"


@pytest.mark.parametrize(
    ("location", "kind", "requested", "lines"),
    [
        ("pack", "step", ("wrap", EntryKind.STEP), [VERSION.format("wrap"), REMOVED.format('"pack", "step"')]),
        ("join/left/pack#2", "step", None, [REMOVED.format('"pack", "step"')]),
        ("pack", "step", ("pack", EntryKind.CHILD), [VERSION.format("pack")]),
        (
            "~timer#3",
            "timer",
            ("~timer#4", EntryKind.TIMER),
            [VERSION.format("timer"), REMOVED.format('"~timer", "timer"')],
        ),
        ("outer/~2/inner/~11", "loop", None, [REMOVED.format('"inner", "loop"')]),
        ("all/17", "child", None, [REMOVED.format('"all", "map"')]),
        ("version:way", "version", None, [REMOVED.format('"version:way", "version"')]),
        ("gone", "removed", None, []),
    ],
)
def test_hints_are_lines_to_paste(location: str, kind: str, requested: Any, lines: list[str]) -> None:
    entry = Entry(location=location, kind=EntryKind(kind), state=EntryState.DONE, position=1)
    assert list(hints(entry, requested, {location})) == lines


def test_another_kind_at_the_same_location_is_a_difference() -> None:
    text = report("It does not fit", [step("charge", 1)], set(), {"charge": EntryKind.CHILD})
    assert table(text)[-1] == "  1  charge  step  done  ≠  charge  child"


def test_a_long_history_is_cut_around_the_first_difference() -> None:
    entries = [step(f"s{number}", number) for number in range(1, 101)]
    text = report("It does not fit", entries, {f"s{number}" for number in range(51, 101)}, {})
    shown = [line.split()[1] for line in table(text)[3:-1]]
    assert shown == [f"s{number}" for number in range(47, 63)]
    assert "… 46 before" in text
    assert "… 38 after" in text


def test_a_long_name_is_cut_at_its_beginning() -> None:
    text = report("It does not fit", [step("a" * 100 + "/end", 1)], set(), {})
    assert max(map(len, table(text))) < 140
    assert "aaa/end" in text


def test_a_blocked_run_keeps_the_report_with_its_error() -> None:
    async def code(ctx: Context) -> None:
        await ctx.step("charge", lambda: 1)
        await ctx.receive("go")

    outcome = Rig(code, entries=(step("charge", 1), step("pack", 2)), token=2, python="2.7").begin().turn.outcome
    assert isinstance(outcome, Block)
    assert "\n" not in outcome.error.message
    assert "2  pack    step  done  ≠  receive:go  message" in outcome.error.traceback
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"It was recorded on Python 2.7, this is {python}." in outcome.error.traceback
    assert f"It was recorded on Python 2.7, this is {python}." in outcome.error.message
    for word in ("deploy code that fits", "rewind", "cancel", 'ctx.removed("pack", "step")'):
        assert word in outcome.error.traceback


def test_a_value_that_no_longer_decodes_is_reported_too() -> None:
    def count() -> int:
        return 1

    async def code(ctx: Context) -> None:
        await ctx.step("charge", count)

    outcome = Rig(code, entries=(step("charge", 1, '"one"'),), token=2).begin().turn.outcome
    assert isinstance(outcome, Block)
    assert "result of step 'charge'" in outcome.error.message
    assert "1  charge  step  done" in outcome.error.traceback
