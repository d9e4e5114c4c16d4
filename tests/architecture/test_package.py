"""The wheel contains everything that an installed holdfast needs, with the demo and the benchmark of its commands."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

PROJECT = Path(__file__).parents[2]
SOURCES = (PROJECT / "src", PROJECT / "examples" / "demo", PROJECT / "benchmarks" / "store_bench")
KINDS = (".lua", ".py", ".sql", ".typed")


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A folder with the contents of a new wheel."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=PROJECT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "unpacked")
    return tmp_path / "unpacked"


def test_the_wheel_has_every_module_and_script(unpacked: Path) -> None:
    wanted = {name for source in SOURCES for name in _files(source)}

    assert {name.split("/")[0] for name in wanted} == {"holdfast", "holdfast_bench", "holdfast_demo"}
    assert _files(unpacked) == wanted


@pytest.mark.long
@pytest.mark.parametrize("words", ["demo --seconds 1 --json", "bench --seconds 0.1 --json"])
def test_the_demo_and_the_benchmark_need_nothing_but_the_wheel(unpacked: Path, tmp_path: Path, words: str) -> None:
    path = os.pathsep.join([str(unpacked), *{sysconfig.get_path(name) for name in ("purelib", "platlib")}])
    # -S: without the path entries of the editable install, which would supply what the wheel lacks.
    command = [sys.executable, "-S", "-m", "holdfast", *words.split()]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, text=True, capture_output=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.suffix in KINDS}
