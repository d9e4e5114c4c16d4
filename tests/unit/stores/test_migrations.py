"""Migrations: the files of steps are well formed, and the numbers decide who may use a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.errors import SchemaOutOfDate
from holdfast.core.ports import SchemaStatus, SchemaStep
from holdfast.stores import migrations
from holdfast.stores.migrations import Migration, Migrations, sql_migrations

STEPS = [
    SchemaStep(number=8, name="a", about="add a", is_compatible=True),
    SchemaStep(number=9, name="b", about="add b", is_compatible=False),
]
KNOWN = Migrations(7, [Migration(step, "") for step in STEPS])


def test_steps_are_read_from_their_files_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "0009-second-one.sql").write_text("-- incompatible: rename x\n\nselect {{x}};\n")
    (tmp_path / "0008-first.sql").write_text("-- compatible: add x\nselect 1;\n")

    found = sql_migrations(7, tmp_path, {"x": "2"})

    assert found.number == 9
    assert [one.step for one in found.all] == [
        SchemaStep(number=8, name="first", about="add x", is_compatible=True),
        SchemaStep(number=9, name="second-one", about="rename x", is_compatible=False),
    ]
    assert "select 2;" in found.all[1].body


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("0009-gap.sql", "-- compatible: x\n"),
        ("8-short.sql", "-- compatible: x\n"),
        ("0008-none.sql", "select 1;\n"),
        ("0008-typo.sql", "-- compatibel: x\n"),
        ("0008-empty.sql", "-- compatible:\n"),
    ],
)
def test_a_file_that_is_not_well_formed_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(AssertionError):
        sql_migrations(7, tmp_path, {})


@pytest.mark.parametrize(("current", "left"), [(0, []), (6, []), (7, [8, 9]), (8, [9]), (9, []), (12, [])])
def test_pending_are_the_steps_between_the_numbers(current: int, left: list[int]) -> None:
    assert [step.number for step in KNOWN.status(current).pending] == left


def test_only_a_step_that_is_not_compatible_raises_the_oldest_number() -> None:
    first, second = KNOWN.all

    assert (first.compatible_from(5), second.compatible_from(5)) == (5, 9)


@pytest.mark.parametrize(
    ("current", "oldest", "is_usable", "is_usable_after_migration"),
    [
        (0, 0, True, True),
        (6, 6, False, False),
        (7, 0, False, True),
        (8, 7, False, True),
        (9, 9, True, True),
        (12, 9, True, True),
        (12, 10, False, False),
        (10, 0, False, False),
        (8, 10, False, False),  # a key-value store in the middle of a step that this code does not know
    ],
)
def test_the_numbers_decide_who_may_use_a_store(
    current: int, oldest: int, *, is_usable: bool, is_usable_after_migration: bool
) -> None:
    def is_accepted(*, may_migrate: bool) -> bool:
        try:
            migrations.check(KNOWN.status(current, oldest), "the store", may_migrate=may_migrate)
        except SchemaOutOfDate:
            return False
        return True

    assert is_accepted(may_migrate=False) is is_usable
    assert is_accepted(may_migrate=True) is is_usable_after_migration


def test_a_store_of_another_package_needs_only_two_numbers() -> None:
    migrations.check(SchemaStatus(current=1, wanted=1), "the store")
    with pytest.raises(SchemaOutOfDate, match="newer"):
        migrations.check(SchemaStatus(current=2, wanted=1), "the store")
