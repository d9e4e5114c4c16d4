"""Commands on a database with a manually edited row: the row is marked, and everything else is as usual."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from tests.unit.cli.rig import Shop

DAMAGES = {
    "payload": "update intent set payload = 'oops' where run_id = ?",
    "tags": "update intent set tags = 'oops' where run_id = ?",
    "state": "update run set state = 'done' where id = ?",
    "created_at": "update run set created_at = 9000000000000000000 where id = ?",
    "type": "update run set type = cast(x'ff' as text) where id = ?",
    "error": "update run set error = '[' where id = ?",
}


@pytest.fixture(params=DAMAGES)
def field(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shop(tmp_path: Path, field: str) -> Shop:
    """A shop with three unclaimed runs, of which the one with the key `odd` cannot be read."""
    shop = Shop(tmp_path)
    for key in ("one", "odd", "two"):
        shop.start("shop.add.v1", {"a": 1, "b": 2}, key=key)
    odd = shop.read("show", "key:odd")["run"]["id"]
    connection = apsw.Connection(str(shop.path))
    connection.execute(DAMAGES[field], (odd,))
    connection.close()
    return shop


def odd_id(shop: Shop) -> str:
    connection = apsw.Connection(str(shop.path))
    found: str = connection.execute("select id from run where key = 'odd'").get
    connection.close()
    return found


def test_a_list_has_one_marked_line(shop: Shop, field: str) -> None:
    runs = shop.read("ls")
    text = shop.type("ls")

    assert len(runs) == 3
    (odd,) = [run for run in runs if run["unreadable"] is not None]
    assert odd["id"] == odd_id(shop)
    assert odd["unreadable"].startswith(f"{field}: ")
    assert odd[field] in (None, {}, "blocked", "?", "9999-12-31T23:59:59.999999Z")
    assert text.exit_code == 0, text.output
    assert text.stdout.count("cannot be read") == 1
    assert len(text.stdout.strip().splitlines()) == 4


def test_an_unreadable_run_is_shown_with_the_reason(shop: Shop, field: str) -> None:
    odd = odd_id(shop)

    shown = shop.type("show", odd)
    assert shown.exit_code == 0, shown.output
    assert f"cannot be read: {field}" in shown.stdout
    assert shop.read("show", odd)["run"]["unreadable"].startswith(field)
    assert "cannot be read" in shop.type("explain", odd).stdout
    for words in (
        ("audit", odd),
        ("history", odd),
        ("ls", "--limit", "2"),
        ("workers",),
        ("types", "ls"),
    ):
        result = shop.type(*words)
        assert result.exit_code == 0, result.output
    assert "cannot be read" in shop.type("doctor").stdout or field in ("state", "type")


def test_an_export_names_an_unreadable_run_and_an_import_reports_it_as_left_out(
    shop: Shop, field: str, tmp_path: Path
) -> None:
    odd = odd_id(shop)
    exported = shop.type("export")
    file = tmp_path / "runs.jsonl"
    file.write_text(exported.stdout)

    assert exported.exit_code == 1
    assert f"run {odd} stays here, because it cannot be read" in exported.stderr
    marked = [line for line in map(json.loads, exported.stdout.splitlines()) if line["line"] == "unreadable"]
    assert [line["id"] for line in marked] == [odd]
    folder = tmp_path / "other"
    folder.mkdir()
    other = Shop(folder)
    other.read("migrate")
    imported = other.type("import", str(file))
    assert imported.exit_code == 0, imported.output
    assert f"run {odd} is not in the file" in imported.stderr
    assert len(other.read("ls")) == 2


def test_bulk_commands_skip_an_unreadable_run(shop: Shop) -> None:
    result = shop.type("cancel", "--filter", "type:shop.add.v1", "--yes")

    assert result.exit_code == 0, result.output
    states = [run["state"] for run in shop.read("ls") if run["key"] in ("one", "two")]
    assert states == ["cancelled", "cancelled"]
