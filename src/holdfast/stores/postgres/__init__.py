"""The Postgres store: any number of producers and workers on any number of machines share one database.

Only `app` and `testing` import it; only this package imports the driver. Start with `store`, which is the port.

An operation is one function of the server, called in one trip; `migrations` has them. What is rare or touches several
runs is decided in Python by the operations of the memory store, on a `working` set that is locked and loaded first.
"""

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
