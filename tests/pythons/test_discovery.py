"""Interpreters are identified by what they report, not by their names."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pythons.discovery import Found, Interpreter, candidates, discover, probe


def interpreter(version: str, executable: str = "", **about: Any) -> Interpreter:
    major, minor, patch = map(int, version.split("."))
    return Interpreter(
        implementation=about.get("implementation", "CPython"),
        version=version,
        order=(major, minor, patch, "final", 0),
        is_free_threaded=about.get("is_free_threaded", False),
        executable=executable or f"/opt/{version}/python",
    )


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def fake(path: Path, says: Interpreter) -> Path:
    """A program that answers the probe as an interpreter would."""
    about = {name: getattr(says, name) for name in says.__struct_fields__}
    return script(path, f"cat <<'END'\n{json.dumps(about)}\nEND")


def found_among(*paths: Path) -> Found:
    return discover(paths)


def test_the_python_of_these_tests_is_found() -> None:
    own = probe(Path(sys.executable))

    assert own.order == tuple(sys.version_info)
    assert own.implementation == "CPython"
    assert Path(own.executable).samefile(Path(sys.executable))
    assert discover([Path(sys.executable)]).interpreters == [own]


def test_candidates_are_on_the_path_and_among_the_versions_of_pyenv(tmp_path: Path) -> None:
    first, second, pyenv = tmp_path / "first", tmp_path / "second", tmp_path / "pyenv"
    wanted = [first / "python3", first / "python3.13", second / "python3.12", second / "python3.14t"]
    versions = [pyenv / "versions" / version / "bin" / "python" for version in ("3.11.7", "pypy3.10")]
    others = [first / name for name in ("python", "python2.7", "python3.9", "python3-config", "python3.13-gdb.py")]
    for python in (*wanted, *versions, *others):
        script(python, "")

    path = os.pathsep.join(["", str(first), str(tmp_path / "missing"), str(others[0]), str(second)])

    assert list(candidates({"PATH": path, "PYENV_ROOT": str(pyenv)})) == wanted + versions


def test_pyenv_is_searched_in_the_home_directory_by_default(tmp_path: Path) -> None:
    python = script(tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python", "")

    assert list(candidates({"HOME": str(tmp_path)})) == [python]


def test_a_pyenv_of_another_user_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def glob(path: Path, pattern: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "glob", glob)

    assert list(candidates({"PYENV_ROOT": str(tmp_path)})) == []


def test_the_newest_patch_of_each_minor_version_is_chosen_oldest_first(tmp_path: Path) -> None:
    newest, older, another = interpreter("3.13.10"), interpreter("3.13.9"), interpreter("3.11.2")
    paths = [fake(tmp_path / str(number), one) for number, one in enumerate([older, newest, another])]

    for given in (paths, paths[::-1]):
        assert found_among(*given) == Found(
            [another, newest], {older.executable: f"is 3.13.9; 3.13.10 at {newest.executable} is used"}
        )


def test_the_first_of_two_with_the_same_version_is_chosen(tmp_path: Path) -> None:
    first, second = interpreter("3.12.1", "/usr/bin/python3.12"), interpreter("3.12.1", "/opt/python3.12")

    found = found_among(fake(tmp_path / "a", first), fake(tmp_path / "b", second))

    assert found.interpreters == [first]
    assert found.passed_over == {"/opt/python3.12": "is 3.12.1; 3.12.1 at /usr/bin/python3.12 is used"}


def test_names_of_one_interpreter_count_once(tmp_path: Path) -> None:
    one = interpreter("3.12.1")

    assert found_among(fake(tmp_path / "python3", one), fake(tmp_path / "python3.12", one)) == Found([one], {})


def test_versions_that_are_too_old_are_skipped_silently(tmp_path: Path) -> None:
    old = fake(tmp_path / "python3", interpreter("3.10.13"))
    ancient = fake(tmp_path / "python", interpreter("2.7.18"))

    assert found_among(old, ancient) == Found([], {})


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"implementation": "PyPy"}, "is PyPy 3.13.1; holdfast is tested on CPython only"),
        ({"is_free_threaded": True}, "is a free-threaded build of 3.13.1; holdfast is not tested without the GIL"),
    ],
)
def test_an_interpreter_that_is_not_tested_is_skipped_with_the_reason(tmp_path: Path, about: Any, reason: str) -> None:
    unfit, fit = interpreter("3.13.1", "/opt/unfit", **about), interpreter("3.13.0", "/opt/fit")

    found = found_among(fake(tmp_path / "unfit", unfit), fake(tmp_path / "fit", fit))

    assert found == Found([fit], {"/opt/unfit": reason})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo >&2; echo 'pyenv: not found' >&2; exit 127", "does not work: exit code 127, pyenv: not found"),
        ("exit 1", "does not work: exit code 1, it says nothing"),
        ("kill -9 $$", "does not work: exit code -9"),
        ("echo hello", "does not answer as a Python"),
        ("echo '{}'", "does not answer as a Python"),
    ],
)
def test_a_shim_that_does_not_work_is_skipped_with_its_output(tmp_path: Path, body: str, reason: str) -> None:
    shim, works = script(tmp_path / "python3.12", body), interpreter("3.12.1")

    found = found_among(shim, fake(tmp_path / "python3", works))

    assert found.interpreters == [works]
    assert reason in found.passed_over[str(shim)]


def test_a_file_that_cannot_be_executed_is_skipped_with_the_reason(tmp_path: Path) -> None:
    dangling = tmp_path / "python3.13"
    dangling.symlink_to(tmp_path / "removed")

    assert found_among(dangling).passed_over[str(dangling)].startswith("does not start: ")
