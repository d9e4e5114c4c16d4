"""The key-value store: the shared operations decide on loaded partitions, and a driver stores the changes.

Start with `driver`, which is all that an engine has to offer. `names` has the layout of the data. `workspace` is what
one operation has loaded and changed, `unit_of_work` shows it to the operations of `stores.operations`, and `decision`
loads, decides, commits and repeats. `checkpoints` and `claims` are the hot paths.
"""

from holdfast.stores.kv.store import KeyValueStore

__all__ = ["KeyValueStore"]
