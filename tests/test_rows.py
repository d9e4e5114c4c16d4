"""Tables in one test: every row is tested, and each one that fails is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rows import each_row

ROWS = [(1, 1), (2, 3), (3, 3), (4, 5)]


def test_every_row_that_fails_is_named_with_its_reason() -> None:
    @each_row(("found", "wanted"), ROWS)
    def equal(found: int, wanted: int) -> None:
        assert found == wanted

    with pytest.raises(ExceptionGroup, match="2 of 4 rows") as failed:
        equal()  # type: ignore[call-arg]  # the table gives them

    assert [str(row) for row in failed.value.exceptions] == ["row found=2, wanted=3", "row found=4, wanted=5"]
    assert all(isinstance(row.__cause__, AssertionError) for row in failed.value.exceptions)


async def test_a_refusal_that_does_not_come_fails_its_row() -> None:
    @each_row("text", ["5", "x"])
    async def refused(text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text)

    with pytest.raises(ExceptionGroup, match="1 of 2 rows") as failed:
        await refused()  # type: ignore[call-arg]

    assert [str(row) for row in failed.value.exceptions] == ["row text='5'"]


def test_a_table_without_rows_fails() -> None:
    @each_row("text", [])
    def nothing(text: str) -> None: ...

    with pytest.raises(AssertionError, match="without rows"):
        nothing()  # type: ignore[call-arg]


@each_row("name", ["a", "b"])
def test_rows_share_the_fixtures(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()

    assert (tmp_path / "a").exists()
