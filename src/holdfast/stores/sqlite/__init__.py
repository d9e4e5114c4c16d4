"""The SQLite store: one file, several processes, no server to install. The only package that imports `apsw`.

Only `app` imports this package, and only for a `sqlite:` URL. Start reading with `store`, which implements the port.
`writer` commits the operations of many callers together. `transaction` is the unit of work of one such commit.
"""

from holdfast.stores.sqlite.files import in_namespace, mode_of
from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "in_namespace", "mode_of"]
