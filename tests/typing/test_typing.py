"""Typed use, proven with mypy and pyright: correct programs keep their types, wrong ones are refused in place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from mypy import api

SAMPLE = Path(__file__).with_name("sample.py.txt")  # not .py: it is full of errors that no other tool should report
ROOT = Path(__file__).parents[2]
_EXPECTED = re.compile(r"  # (?P<kind>[RE])(?:: (?P<text>.*))?$")
_SAID = re.compile(r"^[^:]+:(?P<line>\d+): (?P<level>error|note): (?P<text>.*)$")
_REVEALED = re.compile(r'^(?:Revealed type is|Type of ".*" is) "(?P<type>.*)"$', re.DOTALL)

Said = dict[int, list[str]]
"""Return the messages of a type checker about the sample, by line: errors, and revealed types."""


def mypy(folder: Path, sample: Path) -> Said:
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(folder / "cache")]
    output, problems, _ = api.run([*options, str(sample)])
    assert problems == ""
    found: Said = defaultdict(list)
    for match in filter(None, map(_SAID.match, output.splitlines())):
        if match["level"] == "error" or _REVEALED.match(match["text"]):
            found[int(match["line"])].append(match["text"])
    return found


def pyright(folder: Path, sample: Path) -> Said:
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard", "pythonVersion": "3.11"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(sample)]
    checked = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert checked.returncode in (0, 1), checked.stdout + checked.stderr
    found: Said = defaultdict(list)
    for one in json.loads(checked.stdout)["generalDiagnostics"]:
        found[one["range"]["start"]["line"] + 1].append(one["message"])
    return found


@pytest.fixture(scope="module", params=[mypy, pyright], ids=["mypy", "pyright"])
def checker(request: pytest.FixtureRequest) -> Callable[[Path, Path], Said]:
    check: Callable[[Path, Path], Said] = request.param
    return check


@pytest.fixture(scope="module")
def said(checker: Callable[[Path, Path], Said], tmp_path_factory: pytest.TempPathFactory) -> Said:
    folder = tmp_path_factory.mktemp("typing")
    sample = folder / "sample.py"
    sample.write_text(SAMPLE.read_text())
    return checker(folder, sample)


def expected(kind: str) -> dict[int, str]:
    lines = enumerate(SAMPLE.read_text().splitlines(), start=1)
    found = {number: _EXPECTED.search(line) for number, line in lines}
    return {number: match["text"] or "" for number, match in found.items() if match and match["kind"] == kind}


def plain(text: str) -> str:
    """A revealed type without the modules of its parts."""
    match = _REVEALED.match(text)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", match["type"]) if match else text


def test_every_wrong_use_is_refused_at_its_line(said: Said, request: pytest.FixtureRequest) -> None:
    wanted = expected("E")
    assert len(wanted) > 40
    is_mypy = "mypy" in request.node.name
    for number, text in wanted.items():
        errors = [one for one in said[number] if not _REVEALED.match(one)]
        assert errors, f"sample.py:{number}: expected an error"
        assert not is_mypy or any(text in one for one in errors), f"sample.py:{number}: expected an error {text!r}"


def test_every_correct_use_has_the_type_of_the_users_function(said: Said) -> None:
    wanted = {number: plain(f'Revealed type is "{text}"') for number, text in expected("R").items()}
    assert len(wanted) > 60
    assert {number: [plain(text) for text in said[number]] for number in wanted} == {
        number: [text] for number, text in wanted.items()
    }


def test_there_are_no_other_messages(said: Said) -> None:
    known = expected("R").keys() | expected("E").keys()
    assert {number: texts for number, texts in said.items() if number not in known and texts} == {}
