"""Commands that only read: on a real database, with output for people and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from holdfast import __version__
from tests.unit.cli.rig import Shop

READING = ["ls", "show x", "history x", "audit x", "result x", "explain x", "watch x", "workers", "doctor", "send x y"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop with four runs: one succeeded, one failed, one waits, and one has not been claimed."""
    shop = Shop(tmp_path)
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")
    shop.start("shop.broken.v1", key="broken", tags={"shop": "x"})
    shop.start("shop.order.v1", {"name": "ann"}, key="order-17", tags={"shop": "x", "size": "m"})
    shop.work()
    shop.start("shop.add.v1", {"a": 3, "b": 4}, key="later")
    return shop


def run_id(shop: Shop, key: str) -> str:
    found: str = shop.read("show", f"key:{key}")["run"]["id"]
    return found


# No database yet


@pytest.mark.parametrize("words", [*READING, "cancel x --yes"])
def test_reading_a_database_that_does_not_exist_creates_none(tmp_path: Path, words: str) -> None:
    result = Shop(tmp_path).type(*words.split())

    assert result.exit_code == 5
    assert "there is no holdfast database at sqlite:///" in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_the_plan_of_migrate_creates_no_database(tmp_path: Path) -> None:
    result = Shop(tmp_path).type("migrate", "--plan")

    assert result.exit_code == 0
    assert "would create schema number" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_migrate_creates_the_database_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    first, second = shop.read("migrate"), shop.read("migrate")

    assert first["current"] == first["wanted"]
    assert first["is_made"] is True
    assert second == {**first, "is_made": False}
    assert shop.type("migrate").stderr == "nothing to do\n"
    assert shop.type("ls").stderr == "no runs yet\n"
    assert shop.read("ls") == []


# Lists


def test_runs_are_listed_newest_first_with_their_columns(shop: Shop) -> None:
    lines = shop.type("ls").stdout.splitlines()

    assert lines[0].split() == ["ID", "STATE", "TYPE", "KEY", "CREATED", "ABOUT"]
    assert [line.split()[1:4] for line in lines[1:]] == [
        ["pending", "shop.add.v1", "later"],
        ["suspended", "shop.order.v1", "order-17"],
        ["failed", "shop.broken.v1", "broken"],
        ["succeeded", "shop.add.v1", "sum"],
    ]
    assert "waits for message approve (at most" in lines[2]
    assert "Fatal: the card [bold]was\\x1b[31m refused" in lines[3]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("state:failed", ["broken"]),
        ("--state failed --state pending", ["later", "broken"]),
        ("type:shop.*", ["later", "order-17", "broken", "sum"]),
        ("type:shop.add.v1 state:succeeded", ["sum"]),
        ("tag.shop:x", ["order-17", "broken"]),
        ("--tag shop=x --tag size=m", ["order-17"]),
        ("key:sum", ["sum"]),
        ("since:1h", ["later", "order-17", "broken", "sum"]),
        ("since:2000-01-01 until:2000-01-02", []),
        ("--limit 2", ["later", "order-17"]),
        ("type:billing.*", []),
    ],
)
def test_filters_choose_the_listed_runs(shop: Shop, words: str, keys: list[str]) -> None:
    assert [run["key"] for run in shop.read("ls", *words.split())] == keys


def test_an_empty_list_is_not_an_error(shop: Shop) -> None:
    result = shop.type("ls", "state:blocked")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no run matches\n")


def test_a_truncated_list_says_so_unless_quiet(shop: Shop) -> None:
    assert "--limit N shows more" in shop.type("ls", "--limit", "2").stderr
    assert shop.type("-q", "ls", "--limit", "2").stderr == ""


def test_a_list_continues_after_a_given_run(shop: Shop) -> None:
    output = shop.type("ls", "--limit", "3").stderr
    last = re.search(r"--after (\S+)", output)
    assert last is not None

    assert [run["key"] for run in shop.read("ls", "--limit", "3", "--after", last[1])] == ["sum"]
    assert [run["key"] for run in shop.read("ls", "--after", "key:order-17")] == ["broken", "sum"]
    assert shop.type("ls", "--after", "key:nobody").exit_code == 3
    assert "does not work with --after" in shop.type("ls", "--watch", "--after", "key:sum").stderr


def test_children_are_found_by_their_parent(shop: Shop) -> None:
    result = shop.type("ls", "parent:key:sum")

    assert (result.exit_code, result.stderr) == (0, "no run matches\n")


def test_jsonl_is_one_run_on_each_line(shop: Shop) -> None:
    lines = shop.type("ls", "-o", "jsonl").stdout.splitlines()

    assert [json.loads(line)["key"] for line in lines] == ["later", "order-17", "broken", "sum"]


# One run


def test_a_run_is_shown_with_the_reason_it_waits_and_its_history(shop: Shop) -> None:
    text = shop.type("show", "key:order-17").stdout

    assert text.startswith("shop.order.v1  ")
    assert "key order-17 · shop=x · size=m" in text
    assert 'stage  "approval"' in text
    assert "Waiting: for message approve since" in text
    assert "✓ charge" in text
    assert "… receive:approve" in text


def test_a_failed_run_is_shown_with_its_error_and_the_line_that_raised(shop: Shop) -> None:
    text = shop.type("show", "key:broken").stdout

    assert "✗ charge" in text
    assert "caused by Fatal: the card [bold]was\\x1b[31m refused" in text
    assert "rig.py" in text
    assert "\x1b" not in text
    assert "Traceback" not in text
    assert "Traceback" in shop.type("show", "key:broken", "-v").stdout


def test_a_run_is_shown_whole_in_json(shop: Shop) -> None:
    value = shop.read("show", "key:order-17")

    assert value["run"]["tags"] == {"shop": "x", "size": "m"}
    assert value["run"]["waits"][0]["names"] == ["approve"]
    assert value["values"] == {"stage": "approval"}
    assert [entry["location"] for entry in value["history"]] == ["charge"]
    assert [fact["event"] for fact in value["audit"]] == ["created", "claimed", "suspended"]
    assert value["explanation"].startswith("Waiting: for message approve")


def test_history_and_audit_are_tables_for_people(shop: Shop) -> None:
    history = shop.type("history", "key:order-17").stdout.splitlines()
    audit = shop.type("audit", "key:order-17").stdout.splitlines()

    assert history[0].split() == ["LOCATION", "KIND", "STATE", "ATTEMPTS", "STARTED", "TOOK", "RESULT"]
    assert history[1].split()[:4] == ["charge", "step", "done", "1"]
    assert history[1].endswith('"paid for ann"')
    assert audit[0].split() == ["AT", "AFTER", "EVENT", "BY", "DATA"]
    assert "created" in audit[1]
    assert "key=order-17" in audit[1]


def test_history_and_audit_are_arrays_for_programs(shop: Shop) -> None:
    assert [entry["result"] for entry in shop.read("history", "key:order-17")] == ["paid for ann"]
    assert [fact["event"] for fact in shop.read("audit", "key:later")] == ["created"]
    assert shop.type("history", "key:later").stderr == "nothing is recorded yet\n"


def test_explain_is_one_sentence(shop: Shop) -> None:
    assert shop.type("explain", "key:later").stdout.startswith("Ready since ")
    assert shop.read("explain", "key:order-17")["state"] == "suspended"


@pytest.mark.parametrize(
    ("key", "code", "output"), [("sum", 0, "3\n"), ("broken", 10, ""), ("order-17", 12, ""), ("later", 12, "")]
)
def test_the_exit_code_of_result_follows_the_outcome(shop: Shop, key: str, code: int, output: str) -> None:
    result = shop.type("result", f"key:{key}")

    assert (result.exit_code, result.stdout) == (code, output)
    assert (result.stderr == "") is (code == 0)


def test_the_result_of_a_failed_run_in_json_is_its_error(shop: Shop) -> None:
    result = shop.type("result", "key:broken", "--json")

    assert result.exit_code == 10
    assert json.loads(result.stdout)["error"]["cause"]["type"] == "Fatal"


def test_waiting_for_a_result_ends_with_its_timeout(shop: Shop) -> None:
    result = shop.type("result", "key:order-17", "--wait", "--timeout", "50ms")

    assert result.exit_code == 12
    assert "has not ended yet, it is suspended" in result.stderr


# Naming a run


def test_a_run_is_found_by_a_prefix_of_its_id(shop: Shop) -> None:
    whole = run_id(shop, "order-17")

    assert shop.type("show", whole[:30]).stdout.startswith(f"shop.order.v1  {whole}")


def test_an_ambiguous_prefix_lists_the_matching_runs(shop: Shop) -> None:
    whole = run_id(shop, "order-17")

    result = shop.type("show", whole[:2])

    assert result.exit_code == 2
    assert f"several run ids begin with '{whole[:2]}'; give more of the id" in result.stderr
    assert f"  {whole}  suspended  shop.order.v1" in result.stderr


@pytest.mark.parametrize("name", ["nope", "key:nope"])
@pytest.mark.parametrize("command", ["show", "history", "audit", "result", "explain", "watch"])
def test_an_unknown_run_is_not_found(shop: Shop, command: str, name: str) -> None:
    result = shop.type(command, name)

    assert result.exit_code == 3
    assert "nope" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_empty_name_is_refused(shop: Shop) -> None:
    assert shop.type("show", "").exit_code == 2


# Watching


@pytest.mark.parametrize(("key", "code"), [("sum", 0), ("broken", 10)])
def test_watching_a_finished_run_prints_its_story_and_ends(shop: Shop, key: str, code: int) -> None:
    result = shop.type("watch", f"key:{key}")

    assert result.exit_code == code
    assert "created" in result.stdout
    assert "claimed by" in result.stdout
    assert ("■ succeeded" if code == 0 else "■ failed") in result.stdout


@pytest.mark.parametrize("command", ["watch", "ls"])
def test_watch_prints_lines_of_json_and_the_help_says_so(shop: Shop, command: str) -> None:
    output = " ".join(shop.type(command, "--help").stdout.split())
    assert "with --json one line of JSON" in output or "As JSON, print one line for each change" in output


@pytest.mark.parametrize("form", ["--json", "-ojsonl"])
def test_watching_in_json_gives_entries_then_the_run(shop: Shop, form: str) -> None:
    result = shop.type("watch", "key:sum", form)

    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()] == ["entry", "run"]


def test_the_progress_of_a_task_is_shown_and_watched(shop: Shop) -> None:
    shop.start("shop.export.v1", {"rows": 7}, key="export")
    shop.work()

    assert 'progress  {"rows":7}' in shop.type("show", "key:export").stdout
    assert 'progress: {"rows": 7}' in shop.type("watch", "key:export").stdout
    events = [json.loads(line) for line in shop.type("watch", "key:export", "-o", "jsonl").stdout.splitlines()]
    assert {"kind": "value", "name": "progress", "value": {"rows": 7}} in events


def test_watching_can_be_limited(shop: Shop) -> None:
    result = shop.type("watch", "key:order-17", "--timeout", "50ms")

    assert result.exit_code == 12
    assert "… waits for message approve" in result.stdout


# Everything else


def test_without_workers_the_list_of_them_is_empty(shop: Shop) -> None:
    result = shop.type("workers", "ls")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "no worker is running" in result.stderr
    assert shop.read("workers") == []


def test_the_doctor_warns_of_types_without_a_worker(shop: Shop) -> None:
    result = shop.type("doctor")

    assert result.exit_code == 0
    assert "! types" in result.stdout
    assert "no worker handles shop.order.v1: 1 run has not ended" in result.stdout
    assert "✓ orphans" in result.stdout


def test_a_strict_doctor_treats_warnings_as_problems(shop: Shop) -> None:
    result = shop.type("doctor", "--strict", "--json")

    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert {"python", "store", "sqlite", "schema", "clock", "orphans", "ready"} <= {one["subject"] for one in found}
    assert {one["level"] for one in found} == {"ok", "warning"}


def test_the_version_is_printed_in_two_ways(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    assert shop.type("--version").stdout == f"holdfast {__version__}\n"
    assert shop.type("version").stdout.startswith(f"holdfast {__version__}\n")
    assert shop.read("version")["holdfast"] == __version__


# Global options


def test_global_options_may_stand_before_and_after_the_command(shop: Shop) -> None:
    before = shop.type("--json", "--url", shop.url, "ls", HOLDFAST_URL="sqlite:///nowhere.db")
    after = shop.type("ls", "--json", "--url", shop.url, HOLDFAST_URL="sqlite:///nowhere.db")

    assert before.stdout == after.stdout
    assert len(json.loads(after.stdout)) == 4


def test_a_flag_wins_over_a_variable(shop: Shop) -> None:
    by_variable = shop.type("ls", "--limit", "1", HOLDFAST_OUTPUT="jsonl")
    by_flag = shop.type("ls", "--limit", "1", "--json", HOLDFAST_OUTPUT="jsonl")

    assert by_variable.stdout.startswith("{")
    assert by_flag.stdout.startswith("[")


@pytest.mark.parametrize("words", ["--json -o table ls", "ls -o jsonl --json", "-q -v ls"])
def test_options_that_contradict_each_other_are_refused(shop: Shop, words: str) -> None:
    result = shop.type(*words.split())

    assert result.exit_code == 2
    assert "contradict each other" in result.stderr


@pytest.mark.parametrize(
    "words",
    ["ls", "show key:broken", "show key:order-17", "history key:sum", "audit key:sum", "watch key:sum", "doctor"],
)
def test_colour_can_be_forced_and_forbidden(shop: Shop, words: str) -> None:
    coloured, plain = (shop.type(*words.split(), "--color", color) for color in ("always", "never"))

    assert "\x1b[" in coloured.stdout
    assert "\x1b" not in plain.stdout
    assert coloured.exit_code == plain.exit_code


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_flag_for_colour_wins_over_variables_of_all_programs(shop: Shop, environment: dict[str, str]) -> None:
    assert "\x1b[31m" in shop.type("show", "key:broken", "--color", "always", **environment).stdout


def test_text_of_users_is_not_treated_as_markup(shop: Shop) -> None:
    shown = shop.type("show", "key:broken", "--color", "always", COLUMNS="300").stdout

    assert "the card [bold]was\\x1b[31m refused" in shown
