"""The structure of the source: its layers, the size of its files, their names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGES = ("src/holdfast", "examples/demo/holdfast_demo", "benchmarks/store_bench/holdfast_bench")
FILES = [path for package in PACKAGES for path in (PROJECT / package).rglob("*")]
SOURCES = [path for path in FILES if path.suffix == ".py"]

LINE_LIMIT = 800
VAGUE_NAMES = {"common", "helper", "helpers", "util", "utils"}


def test_imports_point_down_only() -> None:
    linter = subprocess.run(
        # Without its cache, which parallel runs would share.
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert linter.returncode == 0, linter.stdout + linter.stderr


def test_no_source_file_imports_tests_benchmarks_or_examples() -> None:
    imports = re.compile(r"^\s*(from|import) (tests|benchmarks|examples)\b", re.MULTILINE)

    assert [_shown(path) for path in SOURCES if imports.search(path.read_text(encoding="utf-8"))] == []


def test_no_source_file_exceeds_the_maximum_length() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}

    assert {_shown(path): count for path, count in lines.items() if count > LINE_LIMIT} == {}


def test_every_source_file_is_named_after_its_contents() -> None:
    vague = [path for path in FILES if path.stem.strip("_") in VAGUE_NAMES]

    assert [_shown(path) for path in vague] == []


def _shown(path: Path) -> str:
    return str(path.relative_to(PROJECT))
