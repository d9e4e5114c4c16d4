"""The Redis driver of the key-value store: runs are kept on a Redis or Valkey server.

Only `store_urls`, `holdfast_bench` and `testing` import this package, and only this package imports `hiredis`. Start
with `driver`, which has the calls that the key-value store needs. Each is one script in `lua`; `requests` makes its
arguments and reads its reply. `connector` makes `connections`, each of which begins with a handshake (`server`) and a
check of the `epochs`. `renewals` has a connection of its own, and so has `hints`, the subscription to messages from all
processes. `server` knows which servers are safe.
"""

from holdfast.core.clock import Clock
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.redis.driver import RedisDriver

__all__ = ["RedisDriver", "redis_store"]


def redis_store(url: str, *, clock: Clock | None = None) -> KeyValueStore:
    """Return the store for a Redis URL. With a `clock`, its time counts instead of that of the server."""
    return KeyValueStore(lambda: RedisDriver(url, clock=clock), clock=clock)
