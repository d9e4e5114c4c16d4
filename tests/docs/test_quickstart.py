"""The quickstart, typed as written: a worker is killed, another one continues."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.testing.patience import GUARD_SECONDS
from tests.docs.page import DOCS, Page


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with the `shop.py` of the page."""
    (block,) = [block for block in Page(DOCS / "quickstart.md").blocks("python") if block.file_name == "shop.py"]
    (tmp_path / "shop.py").write_text(block.text, encoding="utf-8")
    return tmp_path


def test_a_run_survives_the_death_of_its_worker(shop: Path) -> None:
    with _worker(shop) as first:
        _holdfast(shop, "start", "shop.checkout.v1", "order=17", "cents:=1999", "wait:=5", "--key", "order-17")
        assert first.stdout is not None
        assert first.stdout.readline() == "charging 1999 cents for order 17\n"
        asyncio.run(_until_charged(shop))  # an earlier kill, before the record, would repeat the payment
        first.send_signal(signal.SIGKILL)

    with _worker(shop) as second:
        result = _holdfast(shop, "result", "key:order-17", "--wait", "--timeout", f"{GUARD_SECONDS:g}")
        second.send_signal(signal.SIGTERM)
        printed, _ = second.communicate(timeout=GUARD_SECONDS)

    assert '"parcel": "parcel-17"' in result
    assert printed == "packing order 17\n"
    assert second.returncode == 0


async def _until_charged(shop: Path) -> None:
    # Not by the command: on a busy machine its start takes longer than the run waits.
    async with Holdfast(_environment(shop)["HOLDFAST_URL"]) as hf:
        while not any(entry.location == "charge" for entry in await hf.run(key="order-17").history()):
            await asyncio.sleep(0.01)


@contextmanager
def _worker(shop: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-u", "-m", "holdfast", "-q", "worker", "shop:hf"]
    with subprocess.Popen(command, cwd=shop, env=_environment(shop), stdout=subprocess.PIPE, text=True) as worker:
        try:
            yield worker
        finally:
            worker.kill()  # no effect on a process that has ended


def _holdfast(shop: Path, *words: str) -> str:
    command = [sys.executable, "-m", "holdfast", *words]
    done = subprocess.run(command, cwd=shop, env=_environment(shop), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment(shop: Path) -> dict[str, str]:
    return {**os.environ, "HOLDFAST_URL": f"sqlite:///{shop}/holdfast.db"}
