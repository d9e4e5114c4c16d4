"""Evaluation of measurements: medians, ratios, verdicts, pages and pictures."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from benchmarks.versus import plot, report
from benchmarks.versus.numbers import shown, times
from benchmarks.versus.results import targets
from tests.benchmarks.numbers import FAILING, OURS, PEER, STEP, THROUGHPUT, cell, results


def test_a_ratio_is_the_median_over_rounds_and_not_the_ratio_of_medians() -> None:
    found = results(
        *(cell(THROUGHPUT, OURS, round, rate) for round, rate in enumerate((1000, 2000, 9000))),
        *(cell(THROUGHPUT, PEER, round, rate) for round, rate in enumerate((500, 20, 90))),
    )

    assert found.ratio(THROUGHPUT, THROUGHPUT.figures[0], PEER) == 100
    assert found.median(THROUGHPUT, THROUGHPUT.figures[0], PEER) == 90


def test_a_ratio_is_above_one_if_holdfast_is_better_also_where_less_is_better() -> None:
    found = results(cell(STEP, OURS, 0, 0.001), cell(STEP, PEER, 0, 0.004))

    assert found.ratio(STEP, STEP.figures[0], PEER) == 4


def test_rounds_in_which_one_of_both_failed_do_not_count() -> None:
    found = results(
        cell(THROUGHPUT, OURS, 0, 1000),
        cell(THROUGHPUT, OURS, 1, 1000),
        cell(THROUGHPUT, PEER, 0, None, "no answer within 90 s"),
        cell(THROUGHPUT, PEER, 1, 10),
    )

    assert found.ratio(THROUGHPUT, THROUGHPUT.figures[0], PEER) == 100
    assert found.error(THROUGHPUT, PEER) is None


def test_a_step_is_expressed_in_bare_commits_of_its_moment() -> None:
    found = results(cell(STEP, OURS, 0, 0.0013))

    assert found.in_commits(STEP, STEP.figures[0], OURS) == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(3000.0, True), (2000.0, False), (None, None)], ids=["met", "not met", "not measured"]
)
def test_a_target_is_met_or_missed_or_not_measured(ours: float | None, verdict: bool | None) -> None:
    measured = [] if ours is None else [cell(THROUGHPUT, OURS, 0, ours)]
    found = targets(results(*measured, cell(THROUGHPUT, PEER, 0, 100.0)))

    target = next(one for one in found if one.text == "throughput at least 30 times that of DBOS, Postgres")
    assert target.is_met is verdict


def test_the_page_shows_figures_ratios_dashes_and_failures() -> None:
    page = report.page(
        results(
            cell(THROUGHPUT, OURS, 0, 6000),
            cell(THROUGHPUT, PEER, 0, 150),
            cell(THROUGHPUT, FAILING, 0, None, "no answer within 90 s"),
            cell(STEP, OURS, 0, 0.0013),
        )
    )

    assert "| steps, five-step workflows, many at once | 6,000/s | 150/s 40.0× | failed |" in page
    assert "| one step after another | 1.30 ms | – | – |" in page
    assert "- absurd, Postgres, throughput: no answer within 90 s" in page
    assert "| throughput at least 30 times that of DBOS, Postgres | 40.0 times | met |" in page
    assert "- **DBOS** (1.0). as it comes" in page


def test_an_engine_that_could_not_be_installed_is_reported_in_a_line() -> None:
    page = report.page(results(cell(STEP, OURS, 0, 0.0013), broken="not installed: uv failed"))

    assert "- absurd, Postgres: not installed: uv failed" in page
    assert "**absurd**" not in page


def test_the_picture_has_a_bar_for_each_ratio_and_a_longer_one_for_a_larger() -> None:
    drawn = ET.fromstring(  # noqa: S314 - our own drawing
        plot.drawing(
            results(
                cell(THROUGHPUT, OURS, 0, 1000),
                cell(THROUGHPUT, PEER, 0, 10),
                cell(THROUGHPUT, FAILING, 0, 100),
            )
        )
    )

    name = "{http://www.w3.org/2000/svg}"
    bars = [one for one in drawn.iter(f"{name}rect") if one.get("height") == "15"]
    assert len(bars) == 2
    assert float(bars[0].get("width", "0")) == pytest.approx(2 * float(bars[1].get("width", "0")), rel=0.01)
    assert "100× (10.0/s)" in [one.text for one in drawn.iter(f"{name}text")]


def test_a_picture_without_results_is_still_valid() -> None:
    assert ET.fromstring(plot.drawing(results())).tag.endswith("svg")  # noqa: S314 - our own drawing


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (shown(6123.4, "a second"), "6,123/s"),
        (shown(0.00213, "seconds"), "2.13 ms"),
        (shown(1.5, "seconds"), "1.50 s"),
        (shown(0.0005, "of a core"), "0.05 %"),
        (shown(31 * 2**20, "bytes"), "31 MB"),
        (shown(None, "bytes"), "–"),
        (times(30.04), "30.0×"),
        (times(None), ""),
    ],
)
def test_numbers_are_formatted_for_people(text: str, wanted: str) -> None:
    assert text == wanted
