"""The tests run in the interpreter's own environment, and the table shows the results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pythons import __main__ as command
from tests.pythons.discovery import Found, Interpreter
from tests.pythons.environment import NotInstalled, install
from tests.pythons.test_discovery import interpreter, script
from tests.pythons.trial import SHORT_TIER, Counts, Trial, attempt, count

REPORT = '<testsuites><testsuite errors="1" failures="2" skipped="3" tests="10"></testsuite></testsuites>'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "requirements-dev.txt").write_text("pytest==1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return tmp_path


@pytest.fixture
def uv(project: Path) -> str:
    """Records its requests, and creates a folder with a pytest that has ten tests."""
    make = f"""
echo "$@" >> {project}/asked
if [ "$1" = venv ]; then
    for folder; do :; done
    mkdir -p "$folder/bin"
    cp {project}/pytest "$folder/bin/pytest"
fi"""
    return str(script(project / "uv", make))


def pytest_that(project: Path, *, ends_with: int, report: str = REPORT) -> None:
    script(
        project / "pytest",
        f"""
printf "%s\\n" "$@" > {project}/options
for option; do case "$option" in --junit-xml=*) [ -n '{report}' ] && echo '{report}' > "${{option#*=}}";; esac; done
exit {ends_with}""",
    )


def asked(project: Path) -> list[str]:
    path = project / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_an_environment_has_the_locked_tools_and_this_checkout(project: Path, uv: str) -> None:
    pytest_that(project, ends_with=0)

    folder = install(interpreter("3.13.0", "/opt/python"), project, uv)

    assert folder == project / ".venv-3.13"
    assert asked(project) == [
        f"venv --quiet --clear --python /opt/python {folder}",
        f"pip sync --quiet --python {folder}/bin/python --require-hashes requirements-dev.txt",
        f"pip install --quiet --python {folder}/bin/python --no-deps --no-build-isolation --editable .",
    ]


def test_an_environment_is_kept_until_its_sources_change(project: Path, uv: str) -> None:
    pytest_that(project, ends_with=0)
    made = interpreter("3.13.0", "/opt/python")

    def is_made(one: Interpreter) -> bool:
        install(one, project, uv)
        return bool(asked(project))

    assert is_made(made)
    assert not is_made(made)
    assert is_made(interpreter("3.13.1", "/opt/python"))
    assert is_made(interpreter("3.13.1", "/usr/bin/python"))
    (project / "requirements-dev.txt").write_text("pytest==2\n")
    assert is_made(interpreter("3.13.1", "/usr/bin/python"))
    assert not is_made(interpreter("3.13.1", "/usr/bin/python"))
    assert is_made(interpreter("3.12.1", "/usr/bin/python3.12"))


def test_an_environment_that_could_not_be_created_is_created_the_next_time(project: Path, uv: str) -> None:
    pytest_that(project, ends_with=0)
    broken = script(project / "broken", '[ "$1" = pip ] && { echo "no wheel" >&2; exit 2; }; exec ' + f'{uv} "$@"')
    with pytest.raises(NotInstalled, match="no wheel"):
        install(interpreter("3.13.0"), project, str(broken))
    asked(project)

    install(interpreter("3.13.0"), project, uv)

    assert len(asked(project)) == 3


def test_tests_that_pass_are_counted(project: Path, uv: str) -> None:
    pytest_that(project, ends_with=0, report=REPORT.replace('"1"', '"0"').replace('"2"', '"0"'))

    trial = attempt(interpreter("3.13.0"), project, uv, ["-k", "messages"])

    assert trial.has_passed
    assert trial.counts == Counts(passed=7, failed=0, skipped=3)
    options = (project / "options").read_text().split()
    assert options[: len(SHORT_TIER)] == list(SHORT_TIER)
    assert options[-2:] == ["-k", "messages"]


def test_tests_that_fail_are_counted(project: Path, uv: str) -> None:
    pytest_that(project, ends_with=1)

    trial = attempt(interpreter("3.13.0"), project, uv, [])

    assert trial.counts == Counts(passed=4, failed=3, skipped=3)
    assert (trial.has_passed, trial.verdict) == (False, "failed (exit code 1)")


def test_a_pytest_that_reports_nothing_has_failed(project: Path, uv: str) -> None:
    pytest_that(project, ends_with=3, report="")

    trial = attempt(interpreter("3.13.0"), project, uv, [])

    assert (trial.has_passed, trial.verdict) == (False, "failed (exit code 3)")


def test_an_interpreter_without_an_environment_has_failed_with_a_reason(project: Path) -> None:
    trial = attempt(interpreter("3.15.0"), project, str(script(project / "uv", "echo no wheel >&2; exit 2")), [])

    assert (trial.has_passed, trial.verdict, trial.reason) == (False, "no environment", "no wheel")


def test_the_suites_of_a_report_are_added_up() -> None:
    assert count(REPORT.replace("</testsuites>", REPORT[len("<testsuites>") :])) == Counts(8, 6, 6)


def test_the_table_has_a_line_for_each_python() -> None:
    trials = [
        Trial(interpreter=interpreter("3.11.7"), verdict="passed", counts=Counts(7, 0, 3), seconds=12.6),
        Trial(interpreter=interpreter("3.13.0"), verdict="failed (exit code 1)", counts=Counts(6, 1), seconds=9.2),
    ]

    assert command.table(command.rows(trials)).splitlines() == [
        "PYTHON  PATH                PASSED  FAILED  SKIPPED  SECONDS  VERDICT",
        "3.11.7  /opt/3.11.7/python  7       0       3        13       passed",
        "3.13.0  /opt/3.13.0/python  6       1       0        9        failed (exit code 1)",
    ]


@pytest.mark.parametrize(
    ("versions", "tested", "said"),
    [
        (["3.11.7"], (3, 11), "Only Python 3.11 is found"),
        (["3.11.7", "3.13.0"], (3, 13), "The newest Python that is found is 3.13.0, which `make test` uses"),
        (["3.11.7", "3.13.0"], (3, 11), ""),
    ],
)
def test_the_newest_python_is_not_tested_twice(versions: list[str], tested: tuple[int, int], said: str) -> None:
    found = Found([interpreter(version) for version in versions], {})

    answer = command.nothing_newer(found, tested)

    assert answer.startswith(said)
    assert bool(answer) is bool(said)


class Played:
    """The command with interpreters that do not exist, and a record of its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *versions: str, failing: str = "") -> None:
        self.ran: list[tuple[str, list[str]]] = []
        self._failing = failing
        found = Found([interpreter(version) for version in versions], {"/shims/python3.12": "does not work"})
        monkeypatch.setattr(command, "discover", lambda _: found)
        monkeypatch.setattr(command, "attempt", self._attempt)

    def main(self, *arguments: str) -> int:
        return command.main(arguments, tested=(3, 11))

    def _attempt(self, one: Interpreter, _project: Path, _uv: str, options: list[str]) -> Trial:
        self.ran.append((one.version, options))
        return Trial(interpreter=one, verdict="failed" if one.version == self._failing else "passed")


def test_each_python_is_tested_with_the_options_for_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, "3.11.7", "3.13.0")

    assert played.main("-k", "messages") == 0
    assert played.ran == [("3.11.7", ["-k", "messages"]), ("3.13.0", ["-k", "messages"])]


def test_a_failure_on_one_python_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, "3.11.7", "3.12.1", "3.13.0", failing="3.12.1")

    assert played.main() == 1
    assert len(played.ran) == 3


def test_the_newest_python_is_tested_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, "3.11.7", "3.12.1", "3.13.0")

    assert played.main("--newest") == 0
    assert [version for version, _ in played.ran] == ["3.13.0"]


def test_finding_no_python_at_all_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Played(monkeypatch).main("--newest") == 1


def test_without_a_newer_python_nothing_runs_and_the_output_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = Played(monkeypatch, "3.11.7")

    assert played.main("--newest") == 0
    assert played.ran == []
    assert capsys.readouterr().out.splitlines() == [
        "not used: /shims/python3.12 does not work",
        "Only Python 3.11 is found, which `make test` uses: no other version is tested.",
    ]


def test_the_tests_run_as_in_make_test() -> None:
    makefile = (command.PROJECT / "Makefile").read_text(encoding="utf-8")

    recipes = dict(re.findall(r"^(\w+):.*\n\t(.*)$", makefile, re.MULTILINE))
    written = recipes["test"].replace("$(PYTEST)", re.findall(r"^PYTEST = (.*)$", makefile, re.MULTILINE)[0])

    assert written == f"$(BIN)/pytest {' '.join(SHORT_TIER)} $(ARGS)"
