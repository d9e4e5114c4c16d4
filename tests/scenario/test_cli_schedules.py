"""Commands for schedules."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.core.clock import SECOND
from holdfast.core.commands import PutSchedules
from holdfast.core.model import Schedule
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.clock import VirtualClock
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name


def add(shop: Shop, name: str = "nightly", *options: str) -> Any:
    rule = options or ("--cron", "30 2 * * *", "--zone", "Europe/Rome")
    return shop.read("schedules", "add", name, "shop.add.v1", "--payload", '{"a": 1, "b": 2}', *rule)


def test_a_schedule_is_added_and_its_next_times_are_shown(shop: Shop) -> None:
    output = shop.type("schedules", "add", "nightly", "shop.add.v1", "--cron", "30 2 * * *", "--zone", "Europe/Rome")

    assert output.exit_code == 0
    head, *lines = output.stdout.splitlines()
    assert head.split() == ["NEXT", "IN", "UTC", "FROM", "NOW"]
    assert len(lines) == 5
    assert all(" 02:30:00 CE" in line for line in lines)
    assert "no worker is running yet; workers fire schedules" in output.stderr


def test_all_options_of_a_schedule_are_stored(shop: Shop) -> None:
    output = add(
        shop, "sync", "--every", "5m", "--catch-up", "all", "--overlap", "skip", "--jitter", "10s",
        "--priority", "7", "--tag", "team=a",
    )  # fmt: skip

    upcoming = [datetime.fromisoformat(when) for when in output.pop("upcoming")]
    created = datetime.fromisoformat(output.pop("created_at"))
    assert [(when - created).total_seconds() for when in upcoming] == [300, 600, 900, 1200, 1500]
    assert shop.read("schedules", "ls")[0].items() >= output.items()
    del output["updated_at"], output["next_at"]
    assert output == {
        "name": "sync",
        "type": "shop.add.v1",
        "payload": {"a": 1, "b": 2},
        "cron": None,
        "every_seconds": 300.0,
        "zone": "UTC",
        "catch_up": "all",
        "overlap": "skip",
        "jitter_seconds": 10.0,
        "priority": 7,
        "tags": {"team": "a"},
        "is_declared": False,
        "is_paused": False,
        "last_slot": None,
        "last_run_id": None,
        "skipped": 0,
        "last_skipped_slot": None,
        "unreadable": None,
    }


def test_schedules_are_listed_and_shown(shop: Shop) -> None:
    add(shop)
    add(shop, "sync", "--every", "1h")
    shop.type("schedules", "pause", "sync")

    listed = shop.type("schedules", "ls").stdout.splitlines()
    shown = shop.type("schedules", "show", "nightly").stdout.splitlines()

    assert listed[0].split() == ["NAME", "TYPE", "WHEN", "NEXT"]
    assert listed[1].startswith("nightly  shop.add.v1  30 2 * * * Europe/Rome  in ")
    assert listed[2] == "sync     shop.add.v1  every 1 h               paused"
    assert shown[:6] == [
        "nightly",
        "  type      shop.add.v1",
        "  when      30 2 * * * Europe/Rome",
        '  payload   {"a": 1, "b": 2}',
        "  catch up  one",
        "  overlap   allow",
    ]
    assert len(shop.read("schedules", "show", "nightly")["upcoming"]) == 5
    assert [one["name"] for one in shop.read("schedules", "ls", "--type", "shop.*", "--limit", "1")] == ["nightly"]


def test_an_empty_list_of_schedules_says_so(shop: Shop) -> None:
    shop.type("migrate")

    output = shop.type("schedules", "ls")

    assert (output.exit_code, output.stdout) == (0, "")
    assert "there are no schedules; create one with `holdfast schedules add`" in output.stderr


def test_the_next_times_are_in_the_zone_of_the_schedule(shop: Shop) -> None:
    add(shop)

    plain = shop.type("schedules", "next", "nightly").stdout.splitlines()
    read = [datetime.fromisoformat(when) for when in shop.read("schedules", "next", "nightly")]

    assert len(plain) == 6
    assert all(when.astimezone(UTC).minute == 30 for when in read)


def test_a_schedule_is_paused_and_resumed(shop: Shop) -> None:
    add(shop)

    output = [shop.type("schedules", verb, "nightly") for verb in ("pause", "pause", "resume", "resume")]

    assert [(one.exit_code, one.stdout) for one in output] == [
        (0, "paused nightly\n"),
        (6, ""),
        (0, "resumed nightly\n"),
        (6, ""),
    ]
    assert shop.read("schedules", "pause", "nightly") == {"name": "nightly", "paused": True}


def test_a_schedule_is_triggered_and_a_worker_runs_it(shop: Shop) -> None:
    add(shop)

    run_id = shop.type("schedules", "trigger", "nightly").stdout.strip()
    shop.work()

    assert shop.type("result", run_id).stdout == "3\n"
    assert shop.read("schedules", "show", "nightly")["last_run_id"] == run_id


def test_a_schedule_is_removed_only_after_confirmation(shop: Shop) -> None:
    add(shop)

    unsure = shop.type("schedules", "rm", "nightly")
    sure = shop.type("schedules", "rm", "nightly", "--yes")

    assert (unsure.exit_code, sure.exit_code, sure.stdout) == (2, 0, "removed nightly\n")
    assert "add --yes" in unsure.stderr
    assert shop.read("schedules", "ls") == []


@pytest.mark.parametrize("verb", ["show", "next", "pause", "resume", "trigger", "rm"])
def test_an_unknown_name_suggests_the_nearest(shop: Shop, verb: str) -> None:
    add(shop)

    words = ["--yes"] if verb == "rm" else []
    near = shop.type("schedules", verb, "nigthly", *words)
    far = shop.type("schedules", verb, "qqq", *words)

    assert (near.exit_code, far.exit_code) == (3, 3)
    assert "there is no schedule 'nigthly'; did you mean 'nightly'?" in near.stderr
    assert "there is no schedule 'qqq'; `holdfast schedules ls` and hf.schedules.list() list them" in far.stderr


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (["--cron", "0 25 * * *"], "column 3: '25' is not a valid hour"),
        (["--cron", "0 9 * * *", "--zone", "Rome"], "did you mean 'Europe/Rome'?"),
        (["--every", "1h", "--cron", "0 9 * * *"], "but not both"),
        ([], "needs a cron expression or every"),
        (["--every", "10ms"], "at least 1 second"),
        (["--every", "1h", "--payload", "[1]"], "the payload of a run must be a JSON object"),
        (["--every", "1h", "--tag", "slot=x"], "is set by the schedule itself"),
    ],
)
def test_an_invalid_schedule_is_refused_and_leaves_nothing_behind(shop: Shop, rule: list[str], says: str) -> None:
    output = shop.type("schedules", "add", "nightly", "shop.add.v1", *rule)

    assert output.exit_code == 2
    assert says in output.stderr
    assert not shop.path.exists()


def test_the_mistake_in_an_expression_is_marked(shop: Shop) -> None:
    output = shop.type("schedules", "add", "nightly", "shop.add.v1", "--cron", "0 9 * * mon-fry")

    *_, shown, marks = output.stderr.splitlines()
    assert shown[marks.index("^") : marks.rindex("^") + 1] == "mon-fry"


def test_the_doctor_reports_schedules_that_no_worker_fires(shop: Shop) -> None:
    add(shop)

    async def set_one_last_year() -> None:
        store = SqliteStore(shop.path, clock=VirtualClock(datetime(2020, 1, 1, tzinfo=UTC)))
        await store.open()
        await store.apply(
            PutSchedules(schedules=[Schedule(name="late", type="shop.add.v1", payload="{}", every=SECOND)])
        )
        await store.close()

    before = [one for one in shop.read("doctor") if one["subject"] == "schedules"]
    asyncio.run(set_one_last_year())
    after = [one for one in shop.read("doctor") if one["subject"] == "schedules"]

    assert [one["level"] for one in (*before, *after)] == ["ok", "warning"]
    assert "no worker fires late" in after[0]["text"]
