"""The command: its options, its refusals, and its list of stores."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tests.chaos import places
from tests.chaos.__main__ import parsed
from tests.chaos.display import Display
from tests.chaos.figures import TESTS, Row, lines
from tests.chaos.host import Host, measured
from tests.chaos.journal import Acceptance, Journal


def test_each_module_of_places_is_a_store() -> None:
    assert places.names() == ["postgres", "redis", "sqlite"]


def test_an_unknown_store_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(["--store", "oracle"])

    assert ended.value.code == 2
    said = capsys.readouterr().err.replace("'", "")  # later patches of Python 3.12 and 3.13 quote less
    assert "oracle (choose from postgres, redis, sqlite)" in said


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "soon", "1e9"])
def test_minutes_are_a_positive_number(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(["--store", "sqlite", "--minutes", minutes])

    assert ended.value.code == 2
    assert "is not a number of minutes" in capsys.readouterr().err


def test_a_seed_and_json_are_accepted() -> None:
    options = parsed(["--store", "sqlite", "--minutes", "0.5", "--seed", "s", "--json"])

    assert (options.minutes, options.seed, options.json, options.figures) == (0.5, "s", True, False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_many_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        display = Display(stream)
        for seconds in (1.0, 2.0):
            display.show(seconds, 5, 3, {"kill": 2}, 0.5)
        display.say("over")

    assert terminal.getvalue().count("\r") == 2
    assert terminal.getvalue().endswith("slowest takeover 0.5 s\nover\n")
    assert file.getvalue().count("5 runs accepted, 3 ended (with children)  ·  kill 2") == 2
    assert "\r" not in file.getvalue()


def test_a_missed_figure_is_reported_with_its_proof() -> None:
    host = Host(loop_ms=38.2, commit_ms=1.25, load=0.5)
    rows = [
        Row("a", "1", host, is_good=True, seconds=2.0),
        Row("b", "0", host, is_good=False, seconds=3.0, proof="why"),
    ]

    table = "\n".join(lines(rows))

    assert "a       holds    1        loop 38 ms, commit 1.2 ms, load 0.5        2" in table
    assert "MISSED" in table
    assert table.endswith("b\nwhy")


def test_the_current_speed_of_the_host_is_measured() -> None:
    host = measured()

    assert host.loop_ms > 0
    assert host.commit_ms > 0
    assert host.load >= 0


@pytest.mark.parametrize("path", sorted({tests.path for tests in TESTS}))
def test_the_tests_of_a_figure_exist_and_are_chosen(path: str, pytestconfig: pytest.Config) -> None:
    assert (pytestconfig.rootpath / path).is_file()
    for tests in TESTS:
        if tests.path == path:
            defined = re.findall(r"def (test_\w+)", (pytestconfig.rootpath / path).read_text())
            words = tests.choice.split(" and ")
            assert [name for name in defined if all(word in name for word in words)], tests.choice


def test_a_journal_knows_the_open_jobs_of_its_producer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert journal.unfinished() == [0]
    for item, what in (("0-0", "open"), ("0-1", "open"), ("0-0", "close"), ("0-2", "open")):
        journal.write(Acceptance(item=item, what=what))  # type: ignore[arg-type]  # one of them each

    assert journal.unfinished() == [1, 2, 3]
    assert [one.item for one in journal] == ["0-0", "0-1", "0-0", "0-2"]
