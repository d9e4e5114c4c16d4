"""Commands for types: their limits, and switching them off and on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from tests.scenario.test_cli_acting import a_worker
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name


def listed(shop: Shop, name: str) -> dict[str, Any]:
    (found,) = [one for one in shop.read("types", "ls") if one["name"] == name]
    return dict(found)


def worked(shop: Shop) -> None:
    """Let a worker announce its types and execute all ready runs."""

    async def work(hf: Holdfast) -> None:
        await hf.worker(name="w1").run_until_idle()

    shop.do(work)


def test_limits_are_set_one_by_one_and_listed(shop: Shop) -> None:
    first = shop.type("types", "set", "shop.add.v1", "--concurrency", "5", "--per-key", "tenant=2")
    second = shop.type(
        "types", "set", "shop.add.v1", "--rate", "100/60s", "--retention", "30d", "--description", "Adds"
    )

    assert first.stdout == "shop.add.v1: 5 at once, 2 per tenant\n"
    assert second.stdout == "shop.add.v1: 5 at once, 2 per tenant, 100 in 1 min; kept for 30 d after the end\n"
    assert listed(shop, "shop.add.v1") == {
        "name": "shop.add.v1",
        "runtime": "",
        "description": "Adds",
        "enabled": True,
        "concurrency": 5,
        "per_key": {"tenant": 2},
        "rate": {"count": 100, "seconds": 60.0},
        "retention_seconds": timedelta(days=30).total_seconds(),
        "last_worker": None,
        "last_seen_at": None,
        "counts": {},
        "parked": 0,
        "plan": [],
    }


def test_none_lifts_a_limit(shop: Shop) -> None:
    shop.type("types", "set", "x", "--concurrency", "5", "--per-key", "a=1", "--per-key", "b=2", "--rate", "1/1h")

    lifted = shop.type("types", "set", "x", "--concurrency", "none", "--per-key", "none", "--rate", "none")

    assert lifted.stdout == "x: no limits\n"


def test_rules_for_an_unknown_type_are_accepted_with_a_warning(shop: Shop) -> None:
    shown = shop.type("types", "set", "shop.ad.v1", "--concurrency", "5")

    assert (shown.exit_code, "type shop.ad.v1 is unknown so far" in shown.stderr) == (0, True)


def test_types_are_listed_with_their_worker_and_runs(shop: Shop) -> None:
    worked(shop)
    shop.start("shop.add.v1", {"a": 1, "b": 2})
    shop.start("elsewhere.v1", {})

    lines = shop.type("types", "ls", "shop.*").stdout.splitlines()

    assert lines[0].split() == ["TYPE", "STATE", "RUNTIME", "LIVE", "PARKED", "LIMITS", "SEEN", "DESCRIPTION"]
    assert [line.split()[:5] for line in lines[1:]] == [
        ["shop.add.v1", "on", "python", "1", "0"],
        ["shop.broken.v1", "on", "python", "0", "0"],
        ["shop.desk.v1", "on", "python", "0", "0"],
        ["shop.event.v1", "on", "python", "0", "0"],
        ["shop.export.v1", "on", "python", "0", "0"],
        ["shop.order.v1", "on", "python", "0", "0"],
        ["shop.parent.v1", "on", "python", "0", "0"],
    ]
    assert listed(shop, "shop.add.v1")["last_worker"] == "w1"
    assert listed(shop, "elsewhere.v1")["counts"] == {"pending": 1}


def test_a_type_that_is_switched_off_is_not_executed_until_it_is_switched_on(shop: Shop) -> None:
    run = shop.start("shop.add.v1", {"a": 1, "b": 2})

    off = shop.type("types", "disable", "shop.add.v1")
    worked(shop)

    assert off.stdout == "shop.add.v1 is disabled; 1 of its runs have not ended\n"
    assert shop.read("show", run)["run"]["state"] == "pending"
    assert "is disabled; `holdfast types enable shop.add.v1`" in shop.type("explain", run).stdout
    assert "shop.add.v1 is disabled, but 1 run of this type has not ended" in shop.type("doctor").stdout
    assert shop.type("types", "enable", "shop.add.v1").stdout == "shop.add.v1 is enabled\n"
    worked(shop)
    assert shop.read("show", run)["run"]["state"] == "succeeded"


def test_a_family_of_types_is_switched_at_once(shop: Shop) -> None:
    worked(shop)

    switched = shop.read("types", "disable", "shop.*")

    assert [one["name"] for one in switched] == [
        "shop.add.v1",
        "shop.broken.v1",
        "shop.desk.v1",
        "shop.event.v1",
        "shop.export.v1",
        "shop.order.v1",
        "shop.parent.v1",
    ]
    assert not any(one["enabled"] for one in shop.read("types", "ls"))


def test_an_unknown_family_of_types_is_not_found(shop: Shop) -> None:
    worked(shop)

    shown = shop.type("types", "disable", "billing.*")

    assert (shown.exit_code, "no known type matches billing.*" in shown.stderr) == (3, True)


def test_parked_runs_are_shown(shop: Shop) -> None:
    shop.type("types", "set", "shop.order.v1", "--concurrency", "1", "--rate", "1/1h")
    shop.start("shop.order.v1", {"name": "one"})
    second = shop.start("shop.order.v1", {"name": "two"})
    with a_worker(shop):
        pass

    assert listed(shop, "shop.order.v1")["parked"] == 1
    assert "parked by limit rate:shop.order.v1" in shop.type("ls").stdout
    assert "may begin at" in shop.type("explain", second).stdout


def test_the_doctor_checks_slots(shop: Shop) -> None:
    shop.type("migrate")

    assert "all slots agree with the runs that have them" in shop.type("doctor").stdout


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["set", "x"], "nothing to set; give"),
        (["set", "x", "--concurrency", "many"], "--concurrency 'many'"),
        (["set", "x", "--concurrency", "0"], "concurrency=0"),
        (["set", "x", "--concurrency", "-1"], "--concurrency '-1'"),
        (["set", "x", "--per-key", "tenant"], "--per-key 'tenant'"),
        (["set", "x", "--per-key", "tenant=x"], "--per-key 'tenant=x'"),
        (["set", "x", "--rate", "100"], "--rate '100'"),
        (["set", "x", "--rate", "100/soon"], "'soon' is not a length of time"),
        (["set", "x", "--retention", "long"], "'long' is not a length of time"),
        (["set", "x y", "--concurrency", "1"], "type name"),
        (["disable", "x y"], "type name"),
        (["disable"], "Missing argument"),
    ],
)
def test_invalid_options_are_refused_with_a_sentence(shop: Shop, words: list[str], shown: str) -> None:
    result = shop.type("types", *words)

    assert (result.exit_code, shown in result.stderr) == (2, True), result.stderr
