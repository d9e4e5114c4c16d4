"""`holdfast export` and `holdfast import`, typed as a person would, also with invalid files."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app import session_of
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name


@pytest.fixture
def target(tmp_path: Path) -> Shop:
    """An empty shop to move runs to."""
    (tmp_path / "target").mkdir()
    other = Shop(tmp_path / "target")
    other.type("migrate")
    return other


def opened(shop: Shop) -> tuple[str, str]:
    """Create a run that has ended, and one that waits."""
    ended = shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")
    waiting = shop.start("shop.order.v1", {"name": "tea"}, key="order-17", tags={"shop": "x"})
    shop.work()
    return ended, waiting


def written(shop: Shop, path: Path, *words: str) -> str:
    """Export to a file and return the text on stderr."""
    result = shop.type("export", *words)
    assert result.exit_code == 0, result.stderr
    path.write_bytes(result.stdout_bytes)
    return result.stderr


def state_of(shop: Shop, run_id: str) -> str:
    state: str = shop.read("show", run_id)["run"]["state"]
    return state


def test_runs_are_moved_and_continue_in_the_other_store(shop: Shop, target: Shop, tmp_path: Path) -> None:
    ended, waiting = opened(shop)
    file = tmp_path / "runs.jsonl"

    shown = written(shop, file, "--reason", "moving house")
    result = target.type("import", str(file))

    assert "exported 2 runs" in shown
    assert result.exit_code == 0
    assert result.stdout == "        2  runs\n        1  runs resumed\n"
    assert "(moving house)" in shop.type("explain", waiting).stdout
    target.work()
    target.type("send", "key:order-17", "approve", '"yes"')
    target.work()
    assert json.loads(target.type("result", waiting).stdout) == {"approval": "yes", "paid": "paid for tea"}
    assert json.loads(target.type("result", ended).stdout) == 3
    assert state_of(shop, waiting) == "paused"


def test_lines_are_json_and_nothing_else_is_written(shop: Shop) -> None:
    opened(shop)

    result = shop.type("export", "--json")

    kinds = [json.loads(line)["line"] for line in result.stdout.splitlines()]
    assert kinds == ["holdfast", "run", "run", "end"]


def test_a_dry_run_counts_and_changes_nothing(shop: Shop, target: Shop, tmp_path: Path) -> None:
    _, waiting = opened(shop)

    assert shop.read("export", "--dry-run") == {"ended": 1, "live": 1, "held": 0, "unreadable": 0}
    assert shop.read("export", "--dry-run", "--no-live") == {"ended": 1, "live": 0, "held": 0, "unreadable": 0}
    assert shop.read("export", "--dry-run", "state:suspended") == {"ended": 0, "live": 1, "held": 0, "unreadable": 0}
    shown = shop.type("export", "--dry-run")
    assert "        1  live runs, which would be paused" in shown.stdout
    assert "nothing was changed" in shown.stderr
    assert state_of(shop, waiting) == "suspended"

    written(shop, tmp_path / "runs.jsonl")
    summary = target.read("import", str(tmp_path / "runs.jsonl"), "--dry-run")
    assert (summary["counts"], summary["states"]) == ({"run": 2}, {"paused": 1, "succeeded": 1})
    assert "        2  runs" in target.type("import", str(tmp_path / "runs.jsonl"), "--dry-run").stdout
    assert target.read("ls") == []


def test_an_import_can_be_repeated_without_harm(shop: Shop, target: Shop, tmp_path: Path) -> None:
    opened(shop)
    written(shop, tmp_path / "runs.jsonl")
    first = target.read("import", str(tmp_path / "runs.jsonl"))

    again = target.type("import", str(tmp_path / "runs.jsonl"))

    assert (first["restored"], first["resumed"], first["refused"]) == (2, 1, [])
    assert again.exit_code == 0
    assert "was already imported completely into" in again.stderr
    assert len(target.read("ls")) == 2


def test_an_export_can_be_limited_to_ended_runs(shop: Shop, target: Shop, tmp_path: Path) -> None:
    ended, waiting = opened(shop)

    written(shop, tmp_path / "runs.jsonl", "--no-live", "type:shop.*")
    result = target.type("import", "-", stdin=(tmp_path / "runs.jsonl").read_text())

    assert result.exit_code == 0, result.stderr
    assert [run["id"] for run in target.read("ls")] == [ended]
    assert state_of(shop, waiting) == "suspended"


def test_a_filter_chooses_the_runs_to_export(shop: Shop, tmp_path: Path) -> None:
    _, waiting = opened(shop)

    written(shop, tmp_path / "runs.jsonl", "tag.shop:x")

    runs = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [line["dump"]["run"]["id"] for line in runs if line["line"] == "run"] == [waiting]


def test_a_run_that_is_refused_is_reported(shop: Shop, target: Shop, tmp_path: Path) -> None:
    ended, _ = opened(shop)
    other = target.start("shop.add.v1", {"a": 5, "b": 5}, key="sum")
    written(shop, tmp_path / "runs.jsonl")

    result = target.type("import", str(tmp_path / "runs.jsonl"))

    assert result.exit_code == 6
    assert f"run {ended} has the key 'sum', which belongs to run {other} here" in result.stderr
    assert "        1  runs refused" in result.stdout


def test_a_busy_run_is_left_behind_and_reported(shop: Shop) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2})

    async def hold(hf: Holdfast) -> None:
        from holdfast.testing.contract.arrange import claim

        await claim(session_of(hf).store, types=["shop.add.v1"])

    shop.do(hold)

    result = shop.type("export", "--timeout", "0s")

    assert result.exit_code == 1
    assert "its worker did not release it in time" in result.stderr
    assert "export again later" in result.stderr
    assert [json.loads(line)["line"] for line in result.stdout.splitlines()] == ["holdfast", "end"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "there is nothing to import"),
        (b"\n\n", "there is nothing to import"),
        (b"garbage\n", "line 1 is not JSON: 'garbage'"),
        (b"\x00\xff\xfe\n", "line 1 is not JSON"),
        (b'{"line": "run"}\n', "line 1 is not valid: Object missing required field `dump`"),
        (b'{"a": 1}\n', "line 1 is not valid"),
        (b"[" * 100_000 + b"\n", "line 1 is no"),
    ],
)
def test_an_invalid_file_imports_nothing(target: Shop, tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_bytes(content)

    result = target.type("import", str(file))

    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert target.read("ls") == []


@pytest.mark.parametrize("cut", [1, 2, 3, 40, 400])
def test_a_truncated_file_imports_nothing(shop: Shop, target: Shop, tmp_path: Path, cut: int) -> None:
    opened(shop)
    file = tmp_path / "runs.jsonl"
    written(shop, file)
    data = file.read_bytes()
    file.write_bytes(data[:-cut] if cut > 3 else b"".join(data.splitlines(keepends=True)[:-cut]))

    result = target.type("import", str(file))

    assert result.exit_code == 2
    assert "cut off" in result.stderr
    assert target.read("ls") == []


def test_a_pipe_is_read_as_well_as_a_file(shop: Shop, target: Shop, tmp_path: Path) -> None:
    opened(shop)
    file, pipe = tmp_path / "runs.jsonl", tmp_path / "pipe"
    written(shop, file)
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(file.read_bytes()))
    writer.start()

    result = target.type("import", str(pipe))
    writer.join()

    assert result.exit_code == 0, result.stderr
    assert len(target.read("ls")) == len(shop.read("ls"))


def test_an_unreadable_file_is_reported(target: Shop, tmp_path: Path) -> None:
    result = target.type("import", str(tmp_path / "nowhere.jsonl"))

    assert result.exit_code == 3
    assert "No such file" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["export", "nonsense"],
        ["export", "--timeout", "soon"],
        ["export", "deleted:true"],
        ["export", "--deleted", "--dry-run"],
        ["import"],
    ],
)
def test_usage_errors_are_reported(shop: Shop, words: list[Any]) -> None:
    shop.type("migrate")

    assert shop.type(*words).exit_code == 2


def test_an_import_creates_the_store_unless_it_only_looks_or_the_file_is_bad(shop: Shop, tmp_path: Path) -> None:
    shop.start("shop.add.v1", {"a": 1, "b": 2}, key="sum")
    runs, bad = tmp_path / "runs.jsonl", tmp_path / "bad.jsonl"
    runs.write_text(shop.type("export").stdout)
    bad.write_text(runs.read_text()[:-20])
    (tmp_path / "other").mkdir()
    other = Shop(tmp_path / "other")

    assert other.type("import", str(runs), "--dry-run").exit_code == 0
    assert other.type("import", str(bad)).exit_code != 0
    assert list((tmp_path / "other").iterdir()) == []
    assert other.type("import", str(runs)).exit_code == 0
    assert [run["key"] for run in other.read("ls")] == ["sum"]
