"""The Redis server that all processes of a test run share.

Each process has a database of its own on it, so that stray keys are found in the test that wrote them.
`HOLDFAST_TEST_REDIS` names another server to use instead, by its URL; all processes share its database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.redis.installation import given_url
from tests.redis.namespaces import Namespaces
from tests.redis.server import RedisServer
from tests.redis.settings import DATABASES

_SETTINGS = {"appendfsync": "everysec"}
"""No test kills the shared server, so it need not wait for the disk."""


@contextmanager
def shared_namespaces(folder: Path, worker: int = 0) -> Iterator[Namespaces]:
    """Return namespaces on a server that is the same for all that name the same `folder`."""
    given = given_url()
    if given is not None:
        with Namespaces(given, is_shared=True) as namespaces:
            yield namespaces
        return
    server = RedisServer.shared(folder, lambda: RedisServer(_SETTINGS))
    try:
        # Not database 0: in that one is every connection at its beginning, also those of other workers.
        with Namespaces(server.url_of(database=1 + worker % (DATABASES - 1))) as namespaces:
            yield namespaces
    finally:
        server.leave()
