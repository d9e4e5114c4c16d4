"""`holdfast dev` restarts its worker when the code changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.supervisor import stamps
from holdfast.testing.patience import GUARD_SECONDS, wait_until
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name

APPLICATION = """
import asyncio
from pathlib import Path
from holdfast import Holdfast
from words import WORD

hf = Holdfast()

@hf.task("say.v1")
def say() -> str:
    return WORD

@hf.task("slow.v1")
async def slow() -> str:
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return WORD
"""


class Desk:
    """A developer's desk: the code, and `holdfast dev` running on it."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.folder = shop.path.parent
        (self.folder / "app.py").write_text(APPLICATION)
        self.write("one")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "dev", "app:hf"],
            cwd=self.folder,
            env=os.environ | {"HOLDFAST_URL": shop.url},
            stderr=subprocess.PIPE,
            text=True,
        )

    def write(self, word: str) -> None:
        (self.folder / "words.py").write_text(f"WORD = {word!r}\n")

    def said(self) -> str:
        """Start a run and return its result."""
        return str(self.shop.type("start", "say.v1", "--wait", "--timeout", f"{GUARD_SECONDS:g}").stdout.strip())

    def talks(self, words: str) -> None:
        """Wait until `holdfast dev` has written these words."""
        assert self.process.stderr is not None
        while words not in (line := self.process.stderr.readline()):
            assert line, f"it never said {words!r}"


@pytest.fixture
def desk(shop: Shop) -> Iterator[Desk]:
    desk = Desk(shop)
    try:
        yield desk
    finally:
        desk.process.kill()
        desk.process.communicate()


def test_a_saved_change_is_executed_at_once(desk: Desk) -> None:
    assert desk.said() == '"one"'

    desk.write("two")
    desk.talks("words.py changed; restarting the worker")

    while desk.said() != '"two"':  # the worker with the old code may still have taken it
        pass
    desk.process.send_signal(signal.SIGINT)
    assert desk.process.wait(GUARD_SECONDS) == 0


def test_holdfast_dev_waits_while_the_code_cannot_be_imported(desk: Desk) -> None:
    assert desk.said() == '"one"'

    (desk.folder / "words.py").write_text("WORD = = 2\n")
    desk.talks("words.py changed")
    desk.talks("invalid syntax")
    desk.talks("it restarts as soon as a file changes")
    desk.write("mended")

    while desk.said() != '"mended"':
        pass


def test_an_interrupt_lets_running_steps_finish(desk: Desk) -> None:
    run_id = desk.shop.start("slow.v1")
    wait_until("the step has begun", (desk.folder / "begun").exists)

    desk.process.send_signal(signal.SIGINT)
    (desk.folder / "go").touch()

    assert desk.process.wait(GUARD_SECONDS) == 0
    assert desk.shop.read("show", run_id)["history"][0]["result"] == "one"
    assert desk.shop.read("workers") == []


def test_only_code_and_settings_are_watched(tmp_path: Path) -> None:
    watched = ["app.py", "pyproject.toml", "holdfast.toml", "shop/deep/mail.py"]
    others = ["notes.md", "shop.db", ".git/hook.py", "shop/__pycache__/mail.py", "venv/lib/site.py", "other.toml"]
    for name in watched + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken.py").symlink_to(tmp_path / "nowhere")

    assert {str(path.relative_to(tmp_path)) for path in stamps(tmp_path)} == set(watched)


def test_holdfast_dev_without_an_application_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.path.parent)

    result = shop.type("dev")

    assert result.exit_code == 2
    assert "name your Holdfast object, as in shop:hf" in result.stderr
