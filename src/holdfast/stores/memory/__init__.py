"""The memory store: the model that every other store must answer like. It keeps nothing after the process.

Written for reading. Only `app` and `testing` import it. Start with `store`, which is the port; `state` is all the
data there is; each other module is one kind of operation on it and has its twin of the same name in `stores.sqlite`.
"""

from holdfast.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
