"""One server for all processes of a test run, for example the workers of pytest-xdist.

The first process starts it; it ends after the last one has left or died. Each process has a database of its own on it,
so that stray keys are found in the test that wrote them. `HOLDFAST_TEST_REDIS` names another server to use instead, by
its URL; all processes share its database.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.redis.installation import given_url
from tests.redis.namespaces import Namespaces
from tests.redis.server import RedisServer
from tests.redis.settings import DATABASES

_SETTINGS = {"appendfsync": "everysec"}
"""Nobody kills the shared server, so it need not wait for the disk."""


@contextmanager
def shared_namespaces(folder: Path, worker: int = 0) -> Iterator[Namespaces]:
    """Return namespaces on a server that is the same for all that name the same `folder`."""
    given = given_url()
    if given is not None:
        with Namespaces(given, is_shared=True) as namespaces:
            yield namespaces
        return
    server = _shared(folder)
    try:
        # Not database 0: in that one is every connection at its beginning, also those of other workers.
        with Namespaces(server.url_of(database=1 + worker % (DATABASES - 1))) as namespaces:
            yield namespaces
    finally:
        server.leave()


def _shared(folder: Path) -> RedisServer:
    place = folder / "redis.folder"
    with (folder / "redis.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            server = RedisServer.in_use(Path(place.read_text(encoding="utf-8")))
            if server is not None:
                return server
        server = RedisServer(_SETTINGS)
        try:
            server.start()
        except BaseException:
            server.close()
            raise
        place.write_text(str(server.folder), encoding="utf-8")
        return server
