"""One word has one meaning: no class name occurs twice, and no module has a meaningless name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGES = ("src/holdfast", "examples/demo/holdfast_demo", "benchmarks/store_bench/holdfast_bench")
SOURCES = [path for package in PACKAGES for path in (PROJECT / package).rglob("*.py")]
MEANINGLESS = {"common", "helper", "helpers", "misc", "util", "utils"}


def test_every_class_name_is_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PROJECT)))

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_every_module_has_a_meaningful_name() -> None:
    assert [path.name for path in SOURCES if path.stem in MEANINGLESS] == []
