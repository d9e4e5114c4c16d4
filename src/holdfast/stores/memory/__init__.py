"""The memory store: the model that every other store must answer like. It keeps nothing after the process ends.

It is written for reading. Only `app` and `testing` import the store; `stores.workspace` builds on its state. Start with
`store`, which is the port. `state` has all the data. Each other module is one kind of operation on the data; most have
a counterpart of the same name in `stores.sqlite`.
"""

from holdfast.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
