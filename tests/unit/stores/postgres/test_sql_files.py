"""SQL files: every name in double braces is known and used, and every function is in one file."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from holdfast.stores.postgres import sql_files
from holdfast.stores.postgres.sql_files import column_lists

PLACE = re.compile(r"\{\{(\w+)\}\}")
CREATE = re.compile(r"^create(?: or replace)? function (\w+)\(", re.MULTILINE)


def texts() -> dict[str, str]:
    return {**sql_files.function_texts(), "schema": sql_files.schema_text(), "views": sql_files.views_text()}


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="wrong"):
        sql_files.filled_in("select {{wrong}}")


def test_every_name_in_a_file_is_filled_in() -> None:
    assert "{{" not in sql_files.script()


def test_every_known_name_is_used_by_a_file() -> None:
    used = {name for text in texts().values() for name in PLACE.findall(text)}

    assert used - column_lists().keys() == {*sql_files.HEADERS, *sql_files.CONSTANTS}


def test_no_name_is_a_constant_and_a_header() -> None:
    assert not sql_files.HEADERS.keys() & sql_files.CONSTANTS.keys()


def test_each_text_defines_the_one_function_that_it_is_named_after() -> None:
    assert all(CREATE.findall(text) == [name] for name, text in sql_files.function_texts().items())


def test_no_two_files_define_a_function() -> None:
    folder = files(sql_files.__package__) / "functions"
    made = [name for file in folder.iterdir() for name in CREATE.findall(file.read_text("utf-8"))]

    assert sorted(made) == list(sql_files.function_texts())


def test_no_other_file_defines_a_function() -> None:
    steps = "".join(migration.body for migration in sql_files.migrations().all)

    assert not CREATE.findall(sql_files.schema_text() + sql_files.views_text() + steps)


def test_every_view_is_created_once_and_each_replaces_the_one_before() -> None:
    made = re.findall(r"^create or replace view (\w+)", sql_files.script(), re.MULTILINE)

    assert made == re.findall(r"^create view (\w+)", sql_files.views_text(), re.MULTILINE) == list(sql_files.views())


def test_functions_that_the_schema_uses_are_created_before_it_and_all_others_once_after_it() -> None:
    script = sql_files.script()
    made = CREATE.findall(script)
    before = CREATE.findall(script[: script.index("create table meta")])

    assert sorted(before) == sorted(sql_files.FIRST)
    assert sorted(made) == list(sql_files.function_texts())
