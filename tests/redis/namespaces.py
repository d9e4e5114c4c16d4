"""Namespaces on a server, one for each test: each starts empty, and nothing of it remains.

A test that needs a second namespace adds to the name of its own, as `beside` does. Keys outside of these are a bug of
the store, and fail the test. Connections that a test has left open are ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from tests.redis.cleaning import Cleaner, namespace_of, with_namespace

_PREFIX = "test_"


class Namespaces:
    """Lends namespaces in the database of a URL. Used by one thread, for one test at a time.

    With `is_shared`, other processes lend namespaces in the same database.
    """

    def __init__(self, url: str, *, is_shared: bool = False) -> None:
        self.url = url
        self._is_shared = is_shared
        self._cleaner = Cleaner(url)

    @contextmanager
    def lend(self) -> Iterator[str]:
        """Return a URL with a namespace that is private until the end of the block.

        Raises:
            AssertionError: A key outside of the namespace exists at the end.

        """
        namespace = _PREFIX + secrets.token_hex(6)
        try:
            yield with_namespace(self.url, namespace)
        finally:
            if not self._is_shared:
                self._cleaner.end_sessions()  # they could still write
            strays = self._cleaner.clean(namespace, others=_PREFIX if self._is_shared else "")
            if strays and not self._is_shared:
                self._cleaner.empty()  # the next test is not to blame
        assert not strays, f"keys outside of the namespace {namespace!r} of the test: {', '.join(strays)}"

    def close(self) -> None:
        self._cleaner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def beside(url: str, name: str) -> str:
    """Return the URL of another namespace of the same test."""
    return with_namespace(url, f"{namespace_of(url)}_{name}")
