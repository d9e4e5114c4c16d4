"""One server for all processes of a test run, for example the workers of pytest-xdist.

The first process starts it; it ends after the last one has left or died. `HOLDFAST_TEST_POSTGRES` names another server
to use instead, by its URL, or the version of the private one: `HOLDFAST_TEST_POSTGRES=18`.
"""

from __future__ import annotations

import fcntl
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
    told = os.environ.get(VARIABLE, "")
    if told and not told.isdecimal():
        yield _checked(told)
        return
    server = _shared(folder, wanted_version())
    try:
        yield server.url
    finally:
        server.leave()


def wanted_version() -> int | None:
    """The requested version of private servers, if any."""
    told = os.environ.get(VARIABLE, "")
    return int(told) if told.isdecimal() else None


def _shared(folder: Path, version: int | None) -> PostgresServer:
    place = folder / "postgres.folder"
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            server = PostgresServer.in_use(Path(place.read_text(encoding="utf-8")))
            if server is not None:
                return server
        server = PostgresServer(version, in_memory=True)  # no test kills this one, so nothing has to survive
        try:
            server.start()
        except BaseException:
            server.close()
            raise
        place.write_text(str(server.folder), encoding="utf-8")
        return server


def _checked(url: str) -> str:
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidRequest(f"{VARIABLE} must be a URL like postgresql://user@host/postgres, or a version like 16")
    return url
