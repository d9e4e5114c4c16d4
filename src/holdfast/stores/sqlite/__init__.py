"""The SQLite store: one file, several processes, nothing to install. The only package that imports `apsw`.

Only `app` imports it, and only when a `sqlite:` URL is used. Start with `store`, which is the port; `writer`
runs what is to be written, many callers' operations in one commit; `transaction` is what one such transaction works on.
"""

from holdfast.stores.sqlite.files import in_namespace, mode_of
from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "in_namespace", "mode_of"]
