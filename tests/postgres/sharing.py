"""The Postgres server that all processes of a test run share.

`HOLDFAST_TEST_POSTGRES` names another server to use instead, by its URL, or the version of the private one:
`HOLDFAST_TEST_POSTGRES=18`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import InvalidRequest
from tests.postgres.server import PostgresServer

VARIABLE = "HOLDFAST_TEST_POSTGRES"


@contextmanager
def shared_url(folder: Path) -> Iterator[str]:
    """Return the URL of a server on which databases may be created; the same for all that name the same `folder`."""
    wish = os.environ.get(VARIABLE, "")
    if wish and not wish.isdecimal():
        yield _checked(wish)
        return
    version = wanted_version()
    # In memory, because no test kills this server, so nothing has to survive.
    server = PostgresServer.shared(folder, lambda: PostgresServer(version, in_memory=True))
    try:
        yield server.url
    finally:
        server.leave()


def wanted_version() -> int | None:
    """The requested version of private servers, if any."""
    wish = os.environ.get(VARIABLE, "")
    return int(wish) if wish.isdecimal() else None


def _checked(url: str) -> str:
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidRequest(f"{VARIABLE} must be a URL like postgresql://user@host/postgres, or a version like 16")
    return url
