"""Unusable stores: one clear message, the right exit code, nothing left behind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.stores.sqlite import SqliteStore, schema
from tests.rows import each_row
from tests.unit.cli.conftest import shop
from tests.unit.cli.rig import Shop

__all__ = ["shop"]  # a fixture that pytest finds by its name


@each_row(
    ("url", "message"),
    [
        ("nonsense", "unknown kind of store"),
        ("mysql://ann:secret@host/db", "'mysql://ann:***@host/db': unknown kind of store"),
        ("postgresql://ann:secret@[::1/db", "'postgresql://***@[::1/db' lacks a bracket around the host"),
        ("postgresql://ann:secret@host:abc/db", "the port must be a number from 1 to 65535, not 'abc'"),
        ("mysql://ann:secret@[::1/db", "'mysql://ann:***@[::1/db' is not a valid store URL"),
        ("sqlite://shop.db", "with four slashes"),
        ("sqlite:///shop.db?color=red", "unknown option color"),
        ("memory://", "a memory store exists only inside its own process"),
    ],
)
@each_row("words", ["ls", "start x", "emit x", "migrate", "doctor"])
def test_a_bad_url_is_a_usage_error(shop: Shop, url: str, message: str, words: str) -> None:
    result = shop.type("--url", url, *words.split())

    assert result.exit_code == 2
    assert message in result.stderr
    assert "secret" not in result.output


def test_a_directory_that_does_not_exist_is_not_created(shop: Shop, tmp_path: Path) -> None:
    result = shop.type("start", "x", HOLDFAST_URL=f"sqlite:///{tmp_path}/nowhere/shop.db")

    assert result.exit_code == 5
    assert "there is no directory" in result.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("words", ["ls", "start x", "doctor", "migrate"])
def test_a_file_that_is_not_a_database_is_left_alone(shop: Shop, words: str) -> None:
    shop.path.write_text("This is a letter to a friend, and by no means a database. " * 50)
    before = shop.path.read_bytes()

    result = shop.type(*words.split())

    assert result.exit_code == 5
    assert "is not a SQLite database" in result.stderr
    assert "Traceback" not in result.stderr
    assert shop.path.read_bytes() == before


def test_a_database_that_cannot_be_written_is_unreachable(shop: Shop) -> None:
    # Even root cannot write there.
    result = shop.type("start", "x", HOLDFAST_URL="sqlite:////proc/shop.db")

    assert result.exit_code == 5
    assert "/proc/shop.db" in result.stderr


@pytest.mark.parametrize("words", ["ls", "start x", "cancel x --yes", "migrate", "migrate --plan", "export"])
@pytest.mark.parametrize("number", [1, 99])
def test_a_store_of_another_version_is_refused_and_left_unchanged(shop: Shop, words: str, number: int) -> None:
    shop.type("migrate")
    with closing(apsw.Connection(str(shop.path))) as connection:
        connection.execute("update meta set value = ? where name in ('schema', 'compatible_from')", (str(number),))

    result = shop.type(*words.split())

    assert result.exit_code == 5
    assert f"has schema number {number}, made by" in result.stderr
    assert f"this version needs number {schema.migrations().number}: " in result.stderr
    advice = "use the newer version here" if number == 99 else "export with the old version, import with the new one"
    assert advice in result.stderr
    assert SqliteStore(shop.path).schema().current == number


def test_the_doctor_says_that_another_version_created_the_store(shop: Shop) -> None:
    shop.type("migrate")
    with closing(apsw.Connection(str(shop.path))) as connection:
        connection.execute("update meta set value = '1' where name = 'schema'")

    result = shop.type("doctor")

    assert result.exit_code == 1
    assert "schema number 1, made by an older version of holdfast" in result.stdout
    assert "export with the old version, import with the new one" in result.stdout


def test_a_traceback_is_shown_on_request(shop: Shop) -> None:
    result = shop.type("-vv", "ls")

    assert result.exit_code == 5
    assert result.stderr.startswith("Traceback")
    assert "Error: there is no holdfast database" in result.stderr


def test_the_check_of_a_store_tells_by_its_exit_code_if_it_fits(shop: Shop) -> None:
    empty = shop.type("migrate", "--check")
    assert (empty.exit_code, "the store has no schema" in empty.stdout, shop.path.exists()) == (1, True, False)

    shop.type("migrate")
    assert shop.type("migrate", "--check").exit_code == 0

    with closing(apsw.Connection(str(shop.path))) as connection:
        connection.execute("update meta set value = '99' where name = 'schema'")
    compatible = shop.type("migrate", "--check")
    assert (compatible.exit_code, "schema number 99" in compatible.stdout) == (0, True)
    assert shop.type("ls").exit_code == 0
    assert "of a newer version of holdfast that is compatible with number" in shop.type("doctor").stdout

    with closing(apsw.Connection(str(shop.path))) as connection:
        connection.execute("update meta set value = '99' where name = 'compatible_from'")
    newer = shop.type("migrate", "--check")
    assert (newer.exit_code, "made by a newer version of holdfast" in newer.stdout) == (1, True)


def test_the_plan_and_the_check_exclude_each_other(shop: Shop) -> None:
    result = shop.type("migrate", "--plan", "--check")

    assert (result.exit_code, "exclude each other" in result.stderr) == (2, True)


def test_a_wrong_word_for_who_migrates_is_refused(shop: Shop) -> None:
    result = shop.type("start", "shop.add.v1", "a:=1", "b:=2", HOLDFAST_MIGRATE="yes")

    assert result.exit_code == 2
    assert "HOLDFAST_MIGRATE" in result.stderr
    assert not shop.path.exists()
