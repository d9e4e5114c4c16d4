"""The Redis driver of the key-value store: runs are kept on a Redis or Valkey server.

Only `store_urls`, `holdfast_bench` and `testing` import this package, and only this package imports `hiredis`. Start
with `driver`, which has the calls that the key-value store needs. Each is one script in `lua`; `commits`, `loads`,
`claims` and `renewals` make its arguments and read its answer. `connector` makes connections (`loop_connection` and
`blocking_connection`), each of which begins with a `handshake` and a check of the `epochs`. `hints` is the
subscription to messages from all processes. `settings` knows which servers are safe, `checkup` tells about one.
`administration` works without an open store.
"""

from holdfast.core.clock import Clock
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.redis.driver import RedisDriver

__all__ = ["RedisDriver", "redis_store"]


def redis_store(url: str, *, clock: Clock | None = None) -> KeyValueStore:
    """Return the store for a Redis URL. With a `clock`, its time counts instead of that of the server."""
    return KeyValueStore(lambda: RedisDriver(url, clock=clock), clock=clock)
