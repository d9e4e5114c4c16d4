"""Output: text that cannot control a terminal, and aligned tables."""

from __future__ import annotations

import sys

import pytest

from holdfast.cli.option import Settings
from holdfast.cli.output import Column, Output, Table, cleaned, plain_lines, preview, shortened
from holdfast.cli.summary import short_ids


def test_text_of_users_cannot_control_a_terminal() -> None:
    assert cleaned("a\x1b[31mb\nc\x00") == "a\\x1b[31mb c\\x00"


def test_a_value_is_previewed_on_one_line() -> None:
    assert preview({"a": "b\nc"}) == '{"a": "b\\nc"}'
    assert preview("x" * 100, 10) == '"xxxxxxxx…'
    assert shortened("abc", 3) == "abc"


def test_a_plain_table_aligns_and_never_cuts() -> None:
    table = Table((Column("name"), Column("count", is_number=True), Column("about", may_be_cut=True)))
    table.rows.append({"name": "a", "count": "1", "about": ("x" * 300, "bad")})
    table.rows.append({"name": "long name", "count": "100", "about": ""})

    assert list(plain_lines(table)) == [
        "NAME       COUNT  ABOUT",
        f"a              1  {'x' * 300}",
        "long name    100",
    ]


def test_an_empty_column_is_left_out() -> None:
    table = Table((Column("name"), Column("key")), [{"name": "a", "key": ""}])

    assert [column.name for column in table.without_empty_columns().columns] == ["name"]


def test_ids_are_shortened_as_long_as_they_differ() -> None:
    one, other = "01a1e122-9050-7001-8001-000000000001", "01a1e122-9051-7001-8001-000000000001"
    twin = "01a1e122-9050-7001-8002-000000000001"

    assert short_ids([one, other]) == {one: "01a1e122-9050", other: "01a1e122-9051"}
    assert short_ids([one, twin]) == {one: one[:23], twin: twin[:23]}
    assert short_ids(["mine", "yours"]) == {"mine": "mine", "yours": "yours"}


@pytest.mark.parametrize(
    ("is_terminal", "color", "variables", "is_rich"),
    [
        (True, "auto", {}, True),
        (True, "auto", {"NO_COLOR": "1"}, False),
        (True, "auto", {"TERM": "dumb"}, False),
        (True, "never", {}, False),
        (False, "auto", {}, False),
        (False, "always", {"NO_COLOR": "1"}, True),
    ],
)
def test_colour_is_for_terminals_unless_set_otherwise(
    monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, color: str, variables: dict[str, str], is_rich: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)

    assert Output(Settings(color=color)).is_rich is is_rich


def test_json_is_never_coloured() -> None:
    assert not Output(Settings(output="json", color="always")).is_rich
