"""Commands about pipelines: the plan of a type, how far a run has got, and going back to a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.cli.exits import ExitCode
from tests.unit.cli.rig import Shop

TYPE = "shop.signup.v1"


def create(name: str) -> str:
    return name


async def wait(ctx: Context, name: str) -> str:
    await ctx.sleep(1e-6)
    return f"{name} by {await ctx.receive('active')}"


def report(line: str) -> str:
    return line.upper()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop with a pipeline and a run of it that waits."""
    shop = Shop(tmp_path)

    async def start(hf: Holdfast) -> None:
        await hf.start(TYPE, {"name": "ada"}, key="ada")

    shop.do(start)
    worked(shop)
    return shop


def worked(shop: Shop, *steps: Any) -> None:
    async def work(hf: Holdfast) -> None:
        hf.pipeline(TYPE, *(steps or (create, wait, report)), description="Sign up.")
        await hf.worker([TYPE], name="w1").run_until_idle()

    shop.do(work)


def ended(shop: Shop) -> None:
    assert shop.type("send", "key:ada", "active", '"grace"').exit_code == 0
    worked(shop)


def drawn(shop: Shop) -> str:
    lines = shop.type("show", "key:ada").stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("steps ")]
    return line


def test_a_type_is_shown_with_its_steps(shop: Shop) -> None:
    shop.type("types", "set", TYPE, "--concurrency", "5", "--retention", "2d")

    shown = shop.type("types", "show", TYPE)

    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == f"{TYPE}  enabled"
    assert lines[1:6] == [
        "about    Sign up.",
        "runtime  python",
        "limits   5 at once",
        "kept     for 2 d after the end",
        "runs     1 suspended",
    ]
    assert lines[6].startswith("seen     ")
    assert lines[6].endswith(", by worker w1")
    assert lines[-1] == "steps    create → wait → report"


def test_a_type_as_json_has_its_plan_and_its_workers(shop: Shop) -> None:
    found = shop.read("types", "show", TYPE)

    assert (found["plan"], found["workers"], found["last_worker"]) == (["create", "wait", "report"], [], "w1")
    assert found == {**shop.read("types", "ls")[0], "workers": []}


def test_a_worker_is_shown_with_the_type_that_it_executes(shop: Shop) -> None:
    async def work(hf: Holdfast) -> None:
        hf.pipeline(TYPE, create, wait, report)
        worker = hf.worker([TYPE], name="killed")
        await worker.start()
        await worker.kill()

    shop.do(work)

    (worker,) = shop.read("types", "show", TYPE)["workers"]
    assert worker["name"] == "killed"
    (line,) = [one for one in shop.type("types", "show", TYPE).stdout.splitlines() if one.startswith("worker ")]
    assert line.startswith("worker   killed  ")
    assert line.endswith(", holds 0 runs")


def test_an_unknown_type_is_not_found(shop: Shop) -> None:
    refused = shop.type("types", "show", "shop.sign.v1")

    assert (refused.exit_code, "there is no type shop.sign.v1" in refused.stderr) == (ExitCode.NOT_FOUND, True)


def test_a_run_is_shown_with_the_steps_to_come(shop: Shop) -> None:
    assert drawn(shop) == "steps    ✓ create → ▸ wait → · report"
    assert shop.read("show", "key:ada")["plan"] == {
        "cursor": "wait",
        "steps": [
            {"name": "create", "state": "done"},
            {"name": "wait", "state": "current"},
            {"name": "report", "state": "to_come"},
        ],
    }

    ended(shop)

    assert drawn(shop) == "steps    ✓ create → ✓ wait → ✓ report"
    assert shop.read("show", "key:ada")["plan"]["cursor"] is None


def test_a_cancelled_run_is_shown_where_it_stopped(shop: Shop) -> None:
    shop.type("cancel", "key:ada", "--yes")

    assert drawn(shop) == "steps    ✓ create → ✗ wait → · report"


def test_a_run_is_explained_with_its_step(shop: Shop) -> None:
    said = shop.type("explain", "key:ada").stdout

    assert said.startswith("At step 2 of 3 (wait). Waiting: for message active since ")
    found = shop.read("explain", "key:ada")
    assert (found["explanation"], found["plan"]["cursor"]) == (said.strip(), "wait")


def test_a_run_of_another_type_has_no_plan(shop: Shop) -> None:
    other = shop.start("shop.order.v1", {"name": "tea"})

    assert shop.read("show", other)["plan"] is None
    assert shop.read("explain", other)["plan"] is None
    assert "steps " not in shop.type("show", other).stdout


def test_a_long_plan_is_drawn_on_several_lines(shop: Shop) -> None:
    def numbered(number: int) -> Any:
        def step(value: Any) -> Any:
            return value

        step.__name__ = f"the_long_name_of_step_{number}"
        return step

    worked(shop, create, *map(numbered, range(12)))
    lines = shop.type("types", "show", TYPE).stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("steps "))

    assert len(lines[first:]) > 2
    assert all(len(line) <= 112 for line in lines[first:])
    assert all(line.startswith(" " * 9) for line in lines[first + 1 :])
    assert "".join(line[9:] for line in lines[first:]).count("→") == 12


def test_a_run_is_rewound_to_a_step_by_its_name(shop: Shop) -> None:
    ended(shop)

    planned = shop.type("rewind", "key:ada", "wait", "--dry-run")
    assert [line.split()[0] for line in planned.stdout.splitlines()[1:]] == [
        "wait/~/sleep",
        "wait/~/receive:active",
        "report",
    ]

    done = shop.type("rewind", "key:ada", "wait", "--yes")
    assert done.exit_code == 0
    assert done.stdout.endswith("to wait\n")
    worked(shop)
    assert shop.read("result", "key:ada")["result"] == "ADA BY GRACE"


def test_runs_that_match_a_filter_are_rewound_to_a_step(shop: Shop) -> None:
    ended(shop)

    done = shop.type("rewind", "--filter", f"type:{TYPE}", "wait", "--yes")

    assert done.exit_code == 0, done.output
    assert drawn(shop).startswith("steps    ✓ create → ")


def test_a_run_is_forked_at_a_step(shop: Shop) -> None:
    ended(shop)

    assert shop.type("fork", "key:ada", "wait", "--id", "other", "--yes").exit_code == 0
    worked(shop)
    assert shop.read("explain", "other")["plan"]["cursor"] == "wait"
