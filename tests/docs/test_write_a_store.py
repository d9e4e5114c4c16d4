"""The stores of the pages *Write a store* and *Key-value stores* keep the contract; the first is found by its URL."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.page import DOCS, Page
from tests.duration import lasting


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The files of the page, and the metadata that an installer writes."""
    for block in Page(DOCS / "write-a-store.md").blocks():
        if block.file_name is not None:
            (tmp_path / block.file_name).write_text(block.text, encoding="utf-8")
    declared = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))
    offered = declared["project"]["entry-points"]["holdfast.stores"]
    about = tmp_path / "toy_store-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-store\nVersion: 1.0\n", encoding="utf-8")
    lines = "".join(f"{name} = {value}\n" for name, value in offered.items())
    (about / "entry_points.txt").write_text(f"[holdfast.stores]\n{lines}", encoding="utf-8")
    return tmp_path


def run(package: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    full: Sequence[str] = (sys.executable, "-m", *command)
    return subprocess.run(full, cwd=package, env=environment, capture_output=True, text=True, check=False)


def test_the_command_line_finds_the_store_by_its_url(package: Path) -> None:
    url = ("--url", "toy:///runs.bin")
    started = run(package, "holdfast", *url, "--json", "start", "greet.v1", "name=Ada", "--key", "k")
    assert started.returncode == 0, started.stderr

    listed = run(package, "holdfast", *url, "--json", "ls")
    exported = run(package, "holdfast", *url, "export")

    assert [one["key"] for one in json.loads(listed.stdout)] == ["k"]
    assert exported.returncode != 0
    assert "FileStore cannot export or import runs" in exported.stderr


@pytest.mark.long
@lasting(300)
def test_the_store_keeps_the_contract(package: Path) -> None:
    _check_contract(package, "test_toy_store.py")


@pytest.mark.long
@lasting(300)
def test_the_driver_keeps_the_contract(tmp_path: Path) -> None:
    (block,) = [block for block in Page(DOCS / "key-value-stores.md").blocks() if block.file_name is not None]
    assert block.file_name is not None
    (tmp_path / block.file_name).write_text(block.text, encoding="utf-8")

    _check_contract(tmp_path, block.file_name)


def _check_contract(folder: Path, file: str) -> None:
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", file)

    assert done.returncode == 0, done.stdout[-5_000:]
    (count,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(count) > 600
