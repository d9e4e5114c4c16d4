"""Commands for flows: check, register, list, show, compare and try them, and look at their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name

TYPE = "shop.gift.v1"

GIFT = '''"""Adds a gift."""

async def main(name: str, count: int = 2):
    total = await call("shop.add.v1", a=count, b=1)
    answer = await receive("wrap", timeout=hours(1))
    return {"name": name, "total": total, "wrap": answer}
'''

MISTAKEN = """import os

async def main():
    x = "äöü" + foo(1)
    return x
"""


@pytest.fixture
def gift(tmp_path: Path) -> str:
    """The file of a flow."""
    return written(tmp_path, f"{TYPE}.py", GIFT)


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def waiting(shop: Shop, gift: str) -> str:
    """Register the flow, and let a run of it wait."""
    assert shop.type("flows", "register", gift).exit_code == 0
    run_id = shop.start(TYPE, {"name": "zoe"})
    shop.work()
    return run_id


# Files


def test_check_prints_every_mistake_with_its_place_a_caret_and_advice(shop: Shop, tmp_path: Path) -> None:
    bad = written(tmp_path, "bad.py", MISTAKEN)

    shown = shop.type("flows", "check", bad)

    assert shown.exit_code == 1
    assert shown.stdout.splitlines() == [
        f"{bad}:1:1: a flow cannot import",
        "    import os",
        "    ^",
        "    call a task for what needs a library: await call('my.task.v1', …)",
        f"{bad}:4:17: unknown function foo",
        '    x = "äöü" + foo(1)',
        "                ^",
        "    define it with `def`",
    ]
    assert not shop.path.exists()


def test_check_of_good_and_bad_files_as_json(shop: Shop, gift: str, tmp_path: Path) -> None:
    bad = written(tmp_path, "bad.py", MISTAKEN)

    shown = shop.type("flows", "check", gift, bad, "--json")

    good, refused = json.loads(shown.stdout)
    assert (shown.exit_code, good["mistakes"], good["type"], len(good["version"])) == (1, [], TYPE, 64)
    assert [(one["line"], one["column"]) for one in refused["mistakes"]] == [(1, 1), (4, 17)]
    assert shop.type("flows", "check", gift).exit_code == 0


def test_a_file_that_does_not_exist_is_a_mistake_of_the_user(shop: Shop) -> None:
    shown = shop.type("flows", "check", "nowhere.py")

    assert (shown.exit_code, "there is no file 'nowhere.py'" in shown.stderr) == (2, True)


# Trying


def test_a_flow_is_played_on_a_virtual_clock(shop: Shop, gift: str) -> None:
    shown = shop.type(
        *("flows", "run", gift, "--input", '{"name": "zoe"}', "--stub", "shop.add.v1=3"),
        *("--message", 'wrap={"paper": "a@b"}@60', "--trace"),
    )

    *trace, result = shown.stdout.splitlines()
    assert json.loads(result) == {"name": "zoe", "total": 3, "wrap": {"paper": "a@b"}}
    assert (shown.exit_code, "returned after 1 min" in shown.stderr) == (0, True)
    assert [line.partition(" line ")[2].partition("    |")[0] for line in trace][:2] == [
        '4: call shop.add.v1 {"a":2,"b":1}',
        "4: shop.add.v1 returned 3",
    ]
    assert "line 5: receive wrap until " in trace[2]
    assert not shop.path.exists()


def test_a_played_flow_that_fails_or_waits_forever_has_its_own_exit_code(shop: Shop, tmp_path: Path) -> None:
    endless = written(tmp_path, "endless.py", "async def main():\n    return await wait_event('news')")
    calling = written(tmp_path, "calling.py", "async def main():\n    return await call('x.v1')")

    waits = shop.type("flows", "run", endless)
    fails = shop.type("flows", "run", calling, "--fail", "x.v1=no luck")
    assert (waits.exit_code, "waits for event news" in waits.stderr) == (12, True)
    assert (fails.exit_code, "no luck (line 2" in fails.stdout) == (10, True)
    assert shop.type("flows", "run", calling).exit_code == 2  # no stub
    assert shop.type("flows", "run", endless, "--event", "news=1").stdout == "1\n"
    assert json.loads(shop.type("flows", "run", endless, "--event", "news=1", "--json").stdout)["result"] == 1


def test_a_missing_stub_is_refused_with_the_option_to_add(shop: Shop, gift: str) -> None:
    shown = shop.type("flows", "run", gift, "--input", '{"name": "zoe"}')

    assert shown.exit_code == 2
    assert "add --stub shop.add.v1=JSON" in shown.stderr


def test_repeated_stubs_answer_one_after_the_other(shop: Shop, tmp_path: Path) -> None:
    twice = written(tmp_path, "twice.py", "async def main():\n    return [await call('x.v1'), await call('x.v1')]")

    assert shop.type("flows", "run", twice, "--stub", "x.v1=1", "--stub", "x.v1=2").stdout == "[1,2]\n"


# The store


def test_a_flow_is_registered_once_under_the_name_of_its_file(shop: Shop, gift: str) -> None:
    first = shop.type("flows", "register", gift, "--by", "ada")
    again = shop.type("flows", "register", gift)

    (flow,) = shop.read("flows", "ls")
    version = flow["version"]
    assert first.stdout == f"registered {TYPE} version {version[:12]}\n"
    assert again.stdout == f"{TYPE} version {version[:12]} was registered already; nothing changed\n"
    assert (flow["type"], flow["by"], flow["is_newest"], flow["description"]) == (TYPE, "ada", True, "Adds a gift.")
    assert [one["runtime"] for one in shop.read("types", "ls") if one["name"] == TYPE] == ["flow"]


def test_mistakes_are_not_registered(shop: Shop, tmp_path: Path) -> None:
    shown = shop.type("flows", "register", written(tmp_path, "bad.py", MISTAKEN))

    assert (shown.exit_code, "bad.py:1:1: a flow cannot import" in shown.stdout, shop.path.exists()) == (1, True, False)


def test_versions_are_listed_shown_and_compared(shop: Shop, gift: str, tmp_path: Path) -> None:
    shop.type("flows", "register", gift)
    newer = written(tmp_path, "newer.py", GIFT.replace("hours(1)", "hours(2)"))
    unregistered = shop.type("flows", "diff", newer, "--type", TYPE)
    shop.type("flows", "register", newer, "--type", TYPE)

    old, new = shop.read("flows", "ls", TYPE)
    compared = shop.type("flows", "diff", TYPE, old["version"][:8])
    assert (old["is_newest"], new["is_newest"]) == (False, True)
    assert shop.type("flows", "ls").stdout.splitlines()[1].split()[:3] == [TYPE, new["version"][:12], "2"]
    for shown in (unregistered, compared):
        assert '-    answer = await receive("wrap", timeout=hours(1))' in shown.stdout.splitlines()
        assert '+    answer = await receive("wrap", timeout=hours(2))' in shown.stdout.splitlines()
    assert shop.type("flows", "show", TYPE, "--version", old["version"][:8]).stdout == GIFT
    assert shop.read("flows", "diff", TYPE, old["version"], old["version"])["is_same"] is True
    assert "no version of the flow 'shop.gift.v1' begins with 'zz'" in shop.type("flows", "diff", TYPE, "zz").stderr
    assert shop.type("flows", "show", "nothing.v1").exit_code == 2
    assert shop.type("flows", "diff", TYPE).exit_code == 2


# Runs


def test_show_prints_the_program_with_a_mark_and_the_variables(shop: Shop, gift: str) -> None:
    run_id = waiting(shop, gift)

    lines = shop.type("show", run_id).stdout.splitlines()

    at = lines.index('> 5      answer = await receive("wrap", timeout=hours(1))')
    assert lines[at + 1].strip().startswith("waits for message wrap until ")
    assert lines[-4:] == ["variables of main", '  name   "zoe"', "  count  2", "  total  3"]
    assert any(line.startswith("✓ line 4 shop.add.v1") for line in lines)
    coloured = shop.type("show", run_id, "--color", "always", COLUMNS="80").stdout
    assert "▶" in coloured


def test_show_as_json_has_the_flow(shop: Shop, gift: str) -> None:
    flow: dict[str, Any] = shop.read("show", waiting(shop, gift))["flow"]

    (wait,) = flow["waits"]
    assert (flow["type"], flow["source"], flow["unreadable"]) == (TYPE, GIFT, None)
    assert (wait["line"], wait["function"]) == (5, "main")
    assert wait["frames"][0]["variables"] == flow["variables"] == {"name": "zoe", "count": 2, "total": 3}


def test_a_run_of_code_has_no_flow(shop: Shop) -> None:
    assert shop.read("show", shop.start("shop.add.v1", {"a": 1, "b": 2}))["flow"] is None


def test_a_failed_flow_shows_the_line_that_failed(shop: Shop, tmp_path: Path) -> None:
    file = written(tmp_path, "bad.v1.py", "async def main(n):\n    await sleep(0)\n    return 1 // n\n")
    shop.type("flows", "register", file)
    run_id = shop.start("bad.v1", {"n": 0})
    shop.work()

    lines = shop.type("show", run_id).stdout.splitlines()

    assert "✗ 3      return 1 // n" in lines
    assert lines[lines.index("✗ 3      return 1 // n") + 1].strip() == "failed here, in main"


def test_a_payload_that_does_not_fit_shows_the_parameter_and_no_code_of_the_engine(shop: Shop, gift: str) -> None:
    shop.type("flows", "register", gift)
    run_id = shop.start(TYPE, {"nam": "zoe"})
    shop.work()

    shown = shop.type("show", run_id, "-v").stdout

    assert "InvalidRequest: unknown parameter nam of main; did you mean name?" in shown
    assert "File " not in shown


def test_history_lists_lines_and_kept_turns(shop: Shop, gift: str) -> None:
    run_id = waiting(shop, gift)

    head, *rows = shop.type("history", run_id).stdout.splitlines()

    assert head.split()[:4] == ["LOCATION", "LINE", "KIND", "STATE"]
    assert [row.split()[:4] for row in rows] == [
        ["@turn/1", "snapshot", "done", rows[0].split()[3]],
        ["@4/shop.add.v1#1", "4", "child", "done"],
        ["@turn/2", "snapshot", "done", rows[2].split()[3]],
    ]


def test_a_flow_is_forked_with_a_variable_and_rewound(shop: Shop, gift: str) -> None:
    run_id = waiting(shop, gift)

    tried = shop.type("fork", run_id, "@turn/2", "--patch", "name=1", "--dry-run")
    fork = shop.type("fork", run_id, "@turn/2", "--patch", 'name="ada"', "--yes").stdout.strip()
    wrong = shop.type("fork", run_id, "@turn/2", "--patch", "nam=1", "--yes")
    planned = shop.type("rewind", run_id, "@4/shop.add.v1#1", "--dry-run")
    idle = shop.type("rewind", run_id, "@turn/2", "--dry-run")
    rewound = shop.type("rewind", run_id, "@turn/2", "--yes")
    shop.work()

    assert "the new run begins with 4 of 4 entries and sets name; nothing was created" in tried.stderr
    assert shop.read("show", fork)["flow"]["variables"] == {"name": "ada", "count": 2, "total": 3}
    assert (wrong.exit_code, "did you mean name?" in wrong.stderr) == (2, True)
    assert "1 unread again" in planned.stderr
    assert rewound.stdout == f"rewound {run_id} to @turn/2\n"
    assert shop.read("show", run_id)["flow"]["waits"][0]["line"] == 5
    assert "nothing is dropped; nothing was changed" in idle.stderr


def test_explain_names_the_line(shop: Shop, gift: str) -> None:
    shown = shop.type("explain", waiting(shop, gift)).stdout

    assert shown.startswith("Waiting: for message wrap until ")
    assert '(line 5: `answer = await receive("wrap", timeout=hours(1))`)' in shown


def test_explain_prints_the_program_with_a_mark_and_the_variables(shop: Shop, gift: str) -> None:
    run_id = waiting(shop, gift)

    lines = shop.type("explain", run_id).stdout.splitlines()

    assert '> 5      answer = await receive("wrap", timeout=hours(1))' in lines
    assert lines[-4:] == ["variables of main", '  name   "zoe"', "  count  2", "  total  3"]
    flow = shop.read("explain", run_id)["flow"]
    assert flow == shop.read("show", run_id)["flow"]
    assert flow["waits"][0]["line"] == 5


def test_explain_of_a_flow_that_has_succeeded_and_of_code_has_no_program(shop: Shop, gift: str) -> None:
    run_id = waiting(shop, gift)
    shop.type("send", run_id, "wrap", "1")
    code_id = shop.start("shop.add.v1", {"a": 1, "b": 2})
    shop.work()

    assert [len(shop.type("explain", one).stdout.splitlines()) for one in (run_id, code_id)] == [1, 1]
    assert shop.read("explain", code_id)["flow"] is None


def test_watch_leaves_the_snapshots_out(shop: Shop, gift: str) -> None:
    run_id = waiting(shop, gift)
    shop.type("send", run_id, "wrap", "1")
    shop.work()

    shown = shop.type("watch", run_id)

    assert (shown.exit_code, "@turn" in shown.stdout) == (0, False)
    assert "✓ line 5 receive:wrap" in shown.stdout


def test_a_worker_without_flows_leaves_them_to_others(shop: Shop, gift: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.type("flows", "register", gift)
    run_id = shop.start(TYPE, {"name": "zoe"})
    (shop.path.parent / "empty_app.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n")
    monkeypatch.chdir(shop.path.parent)

    refused = shop.type("worker", "empty_app:hf", "--until-idle", "--no-flows")
    assert (refused.exit_code, "has no workflow or task" in refused.stderr) == (2, True)
    assert shop.read("show", run_id)["flow"]["note"] == "it has not begun"

    unknown = shop.type("worker", "empty_app:hf", "--until-idle", "--types", "shop.gitf.v1")
    assert (unknown.exit_code, "did you mean shop.gift.v1?" in unknown.stderr) == (2, True)


def test_check_before_a_deploy_counts_flows(shop: Shop, gift: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(shop, gift)
    (shop.path.parent / "deployed_app.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n")
    monkeypatch.chdir(shop.path.parent)

    shown = shop.type("check", "deployed_app:hf")

    assert (shown.exit_code, "1 live run checked: 1 fit" in shown.stderr) == (0, True)
    assert "1 of them is a flow, whose program no deploy changes" in shown.stderr
