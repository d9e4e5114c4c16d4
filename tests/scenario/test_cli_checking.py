"""`holdfast check`, and how `show` and `explain` describe a run that does not fit its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.unit.cli.rig import Shop

SAME = """
from datetime import timedelta
from holdfast import Context, Holdfast

hf = Holdfast()

@hf.workflow("shop.order.v1")
async def order(ctx: Context, name: str) -> object:
    await ctx.step("charge", print, "executed")
    return await ctx.receive("approve", timeout=timedelta(hours=1))
"""
RENAMED = SAME.replace('ctx.step("charge"', 'ctx.step("bill"')
LAX = RENAMED.replace('"shop.order.v1"', '"shop.order.v1", strict=False')
SHORTER = SAME.replace('    await ctx.step("charge", print, "executed")\n', "")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop with a run that has charged a card and waits."""
    shop = Shop(tmp_path)
    shop.start("shop.order.v1", {"name": "ada"}, key="order-1")
    shop.work()
    return shop


def check(shop: Shop, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `holdfast check` as a process, on an application with this code."""
    (shop.path.parent / "app.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "check", "app:hf", *arguments],
        text=True,
        capture_output=True,
        check=False,
        cwd=shop.path.parent,
        env=os.environ | {"HOLDFAST_URL": "sqlite:///shop.db"},
    )


@pytest.mark.long
def test_schedules_that_the_code_no_longer_has_are_named(shop: Shop) -> None:
    code = SAME.replace("@hf.workflow", '@hf.schedule(every=3600, args=("ada",))\n@hf.workflow', 1)
    (shop.path.parent / "app.py").write_text(code)
    subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "app:hf", "--until-idle"],
        check=True,
        cwd=shop.path.parent,
        env=os.environ | {"HOLDFAST_URL": "sqlite:///shop.db"},
    )

    same, without = check(shop, code), check(shop, SAME)

    assert "schedules" not in same.stderr
    assert "code declared, but app:hf no longer has: shop.order.v1; `holdfast schedules rm` ends them" in without.stderr


def test_code_that_fits_passes_and_nothing_is_executed(shop: Shop) -> None:
    before = shop.read("show", "key:order-1")
    done = check(shop, SAME)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "1 live run checked: 1 fit\n"
    assert shop.read("show", "key:order-1")["history"] == before["history"]


def test_code_that_diverges_is_reported_and_fails_the_gate(shop: Shop) -> None:
    done = check(shop, SHORTER)
    assert done.returncode == 1
    assert "order-1" in done.stdout
    assert "diverges" in done.stdout
    assert done.stderr == "1 live run checked: 1 diverge\n-v shows history and code side by side\n"


@pytest.mark.long
def test_verbose_shows_history_and_code_side_by_side(shop: Shop) -> None:
    done = check(shop, SHORTER, "-v")
    assert done.returncode == 1
    assert "  1  charge  step  done  ≠  receive:approve  message" in done.stdout


def test_the_difference_comes_first_with_the_lines_to_paste(shop: Shop) -> None:
    shop.start("shop.order.v1", {"name": "bob"})
    shop.work()
    done = check(shop, RENAMED)
    assert done.returncode == 1
    assert done.stdout.splitlines()[:4] == [
        "shop.order.v1: recorded charge (step), requested bill (step) in 2 runs",
        '    if ctx.version("bill", 2) == 1:  # the old code; else the new code',
        '    ctx.removed("charge", "step")  # at its old place, if you removed it',
        "",
    ]
    assert "diverges  charge (step)  bill (step)" in done.stdout


@pytest.mark.long
def test_an_undecided_run_fails_the_gate_unless_that_is_allowed(shop: Shop) -> None:
    done = check(shop, LAX)
    assert done.returncode == 1
    assert done.stderr == "1 live run checked: 1 undecided\n-v shows history and code side by side\n"
    assert "recorded charge (step), requested bill (step) in 1 run\n" in done.stdout
    assert check(shop, LAX, "--allow-undecided").returncode == 0
    assert check(shop, RENAMED, "--allow-undecided").returncode == 1


def test_types_that_the_application_does_not_have_are_listed_separately(shop: Shop) -> None:
    shop.start("shop.event.v1", {"topic": "news"})
    done = check(shop, SAME)
    assert done.returncode == 0
    assert done.stderr == "1 live run checked: 1 fit\nnot checked, because app:hf does not have these types:\n"
    assert done.stdout.splitlines() == ["TYPE           LIVE RUNS", "shop.event.v1          1"]


def test_json_has_every_run_with_its_fit(shop: Shop) -> None:
    shop.start("shop.event.v1", {"topic": "news"})
    done = check(shop, SHORTER, "--json")
    assert done.returncode == 1
    found = {one["type"]: one for one in json.loads(done.stdout)}
    assert found["shop.order.v1"]["fit"] == "diverges"
    assert found["shop.order.v1"].keys() == {
        *("id", "type", "state", "key", "fit", "recorded", "requested", "hints", "summary", "report"),
    }
    assert found["shop.order.v1"]["recorded"] == "charge (step)"
    assert found["shop.order.v1"]["requested"] == "receive:approve (message)"
    assert len(found["shop.order.v1"]["hints"]) == 2
    assert found["shop.event.v1"]["fit"] == "unknown"


@pytest.mark.long
def test_a_check_can_be_limited(shop: Shop) -> None:
    assert check(shop, SHORTER, "--type", "billing.*").stderr == "0 live runs checked\n"
    shop.start("shop.order.v1", {"name": "bob"})
    assert check(shop, SHORTER, "--limit", "1").stderr == "1 live run checked: 1 fit\n"


@pytest.mark.long
def test_a_terminal_shows_the_progress_of_a_long_check(shop: Shop) -> None:
    async def start_many(hf: Holdfast) -> None:
        await hf.start_many("shop.order.v1", [{"name": str(number)} for number in range(30)])

    shop.do(start_many)
    done = check(shop, SAME, "--color", "always")
    assert done.returncode == 0
    assert "checking" in done.stderr
    assert done.stderr.endswith("31 live runs checked: 31 fit\n")


def test_a_store_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    done = check(Shop(tmp_path), SAME)
    assert done.returncode == 5
    assert "there is no holdfast database" in done.stderr
    assert not (tmp_path / "shop.db").exists()


@pytest.fixture
def blocked(shop: Shop) -> Shop:
    """A shop with a run that is blocked, because code that continued it did not fit."""
    (shop.path.parent / "app.py").write_text(SHORTER)
    shop.type("send", "key:order-1", "poke")
    shop.type("send", "key:order-1", "approve")
    subprocess.run(
        [sys.executable, "-m", "holdfast", "-q", "worker", "app:hf", "--until-idle"],
        check=True,
        cwd=shop.path.parent,
        env=os.environ | {"HOLDFAST_URL": "sqlite:///shop.db"},
    )
    assert shop.read("show", "key:order-1")["run"]["state"] == "blocked"
    return shop


def test_a_blocked_run_shows_history_and_code_side_by_side(blocked: Shop) -> None:
    shown = blocked.type("show", "key:order-1").stdout
    assert "recorded" in shown
    assert "  1  charge  step  done  ≠" in shown
    assert 'ctx.removed("charge", "step")' in shown


def test_explain_states_the_divergence_in_a_line_and_with_v_shows_both_sides(blocked: Shop) -> None:
    assert len(blocked.type("explain", "key:order-1").stdout.splitlines()) == 1
    assert "  1  charge  step  done  ≠" in blocked.type("explain", "key:order-1", "-v").stdout
