"""The wheel contains every file that an installed holdfast needs besides its modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "src"


SCRIPTS = (".sql", ".lua")


def test_the_wheel_has_every_sql_and_lua_file(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=PROJECT, check=True, capture_output=True)

    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        found = {name for name in packed.namelist() if name.endswith(SCRIPTS)}
    assert found == {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if path.suffix in SCRIPTS}
