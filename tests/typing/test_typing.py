"""Typed use, proven with mypy: right programs keep their types, wrong ones are refused where they are wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from mypy import api

SAMPLE = Path(__file__).with_name("sample.py.txt")  # no .py: it is full of errors that nobody should find
ROOT = Path(__file__).parents[2]
_EXPECTED = re.compile(r"  # (?P<kind>[RE])(?:: (?P<text>.*))?$")
_SAID = re.compile(r"^[^:]+:(?P<line>\d+): (?P<level>error|note): (?P<text>.*)$")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """What mypy says about the sample, by line: errors, and the types it reveals."""
    folder = tmp_path_factory.mktemp("typing")
    sample = folder / "sample.py"
    sample.write_text(SAMPLE.read_text())
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(folder / "cache")]
    output, problems, _ = api.run([*options, str(sample)])
    assert problems == ""
    found: dict[int, list[str]] = defaultdict(list)
    for match in filter(None, map(_SAID.match, output.splitlines())):
        text = match["text"]
        if match["level"] == "error" or text.startswith("Revealed type is"):
            found[int(match["line"])].append(text)
    return found


def expected() -> dict[int, tuple[str, str]]:
    lines = enumerate(SAMPLE.read_text().splitlines(), start=1)
    found = {number: _EXPECTED.search(line) for number, line in lines}
    return {number: (match["kind"], match["text"] or "") for number, match in found.items() if match}


def plain(text: str) -> str:
    """A revealed type without the modules of its parts."""
    revealed = text.removeprefix("Revealed type is ").strip('"')
    return re.sub(r"\b(?:builtins|holdfast\.[\w.]+|[\w.]*sample)\.", "", revealed)


def test_every_wrong_use_is_refused_where_it_is_wrong(said: dict[int, list[str]]) -> None:
    wanted = {number: text for number, (kind, text) in expected().items() if kind == "E"}
    assert len(wanted) > 20
    for number, text in wanted.items():
        assert any(text in one for one in said[number]), f"sample.py:{number}: expected an error {text!r}"


def test_every_right_use_has_the_type_of_the_users_own_function(said: dict[int, list[str]]) -> None:
    wanted = {number: text for number, (kind, text) in expected().items() if kind == "R"}
    assert len(wanted) > 30
    assert {number: [plain(text) for text in said[number]] for number in wanted} == {
        number: [text] for number, text in wanted.items()
    }


def test_nothing_else_is_said(said: dict[int, list[str]]) -> None:
    known = expected().keys()
    assert {number: texts for number, texts in said.items() if number not in known and texts} == {}
