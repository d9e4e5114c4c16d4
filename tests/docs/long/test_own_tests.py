"""The tests on the page about testing with Postgres pass, with the fixtures of that page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.page import DOCS, Page


def test_the_tests_of_the_page_pass(postgres_url: str, tmp_path: Path) -> None:
    for block in Page(DOCS / "testing-on-postgres.md").blocks("python"):
        if block.file_name is not None:
            (tmp_path / block.file_name).write_text(block.text, encoding="utf-8")

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", str(tmp_path)]
    environment = {**os.environ, "TEST_POSTGRES": postgres_url}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
