"""Tables in one test: a row that fails does not hide the others, and the failure names each row that failed.

    @each_row(("text", "message"), [("5", "expected a name"), ...])
    def test_a_wrong_name_is_refused(text: str, message: str) -> None: ...

For tables of wrong values with one expected message each, where a test per row costs more than the row. All rows get
the same fixtures. `pytest.mark.parametrize` stays right where each row is a scenario of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test once per row, with the row as its arguments of these names. Without rows, it fails."""
    columns = (names,) if isinstance(names, str) else names
    table = [dict(zip(columns, (row,) if isinstance(names, str) else row, strict=True)) for row in rows]

    def decorate(test: Test) -> Test:
        async def test_async(**fixtures: Any) -> None:
            with _rows(table) as of_row:
                for row in table:
                    with of_row(row):
                        await test(**fixtures, **row)

        def test_sync(**fixtures: Any) -> None:
            with _rows(table) as of_row:
                for row in table:
                    with of_row(row):
                        test(**fixtures, **row)

        whole = functools.wraps(test)(test_async if inspect.iscoroutinefunction(test) else test_sync)
        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        whole.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]  # pytest reads it
        return cast("Test", whole)

    return decorate


@contextmanager
def _rows(table: list[dict[str, Any]]) -> Iterator[Callable[[dict[str, Any]], Any]]:
    assert table, "a table without rows tests nothing"
    failures: list[Exception] = []

    @contextmanager
    def of_row(row: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  whatever a row raises fails it
            name = ", ".join(f"{column}={value!r}" for column, value in row.items())
            failure = AssertionError(f"row {name}")
            failure.__cause__ = error
            failures.append(failure)

    yield of_row
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(table)} rows", failures)
