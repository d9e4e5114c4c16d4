"""Databases on a server, one for each test: each starts empty, or with an empty schema of a store.

Creating and dropping a database takes Postgres a tenth of a second, and so does the schema. So a used database is
cleaned, which takes milliseconds, and given to the next test. All are dropped at the end.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit, urlunsplit

from holdfast.core.errors import InvalidRequest

if TYPE_CHECKING:
    from types import TracebackType

    from tests.postgres.cleaning import Cleaner

_PREFIX = "holdfast_test_"


class Databases:
    """Lends databases on a server whose URL may create them. Used by one thread."""

    def __init__(self, url: str) -> None:
        try:
            from tests.postgres import cleaning
        except ImportError:
            raise InvalidRequest("tests on Postgres need its driver: `pip install 'holdfast[postgres]'`") from None
        self.url = url
        self._connect = cleaning.connect
        self._cleaner_of = cleaning.Cleaner
        self._empty: list[Cleaner] = []
        self._migrated: list[Cleaner] = []
        self._lent: list[Cleaner] = []

    @contextmanager
    def lend(self, *, is_migrated: bool = False) -> Iterator[str]:
        """Return the URL of a database that is private until the end of the block.

        It is empty, or `is_migrated`: then it has the schema of a store as the current version creates it.
        """
        cleaner = self._migrated.pop() if is_migrated and self._migrated else self._new()
        self._lent.append(cleaner)
        if is_migrated:
            cleaner.migrate()
        try:
            yield cleaner.url
        finally:
            is_clean = is_migrated and cleaner.clean()
            if not is_clean:
                cleaner.empty()
            self._lent.remove(cleaner)
            (self._migrated if is_clean else self._empty).append(cleaner)

    def close(self) -> None:
        """Drop every database, also those in use."""
        cleaners = (*self._empty, *self._migrated, *self._lent)
        for cleaner in cleaners:
            cleaner.close()
        with self._connect(self.url) as connection:
            for cleaner in cleaners:
                connection.execute(f"drop database if exists {cleaner.name} with (force)".encode())
        self._empty.clear()
        self._migrated.clear()
        self._lent.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _new(self) -> Cleaner:
        if self._empty:
            return self._empty.pop()
        name = _PREFIX + secrets.token_hex(6)
        with self._connect(self.url) as connection:
            connection.execute(f"create database {name} template template0".encode())
        return self._cleaner_of(name, urlunsplit(urlsplit(self.url)._replace(path=f"/{name}")))
