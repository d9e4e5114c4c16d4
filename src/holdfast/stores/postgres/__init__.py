"""The Postgres store: any number of producers and workers on any number of machines share one database.

Only `app` and `testing` import it; only this package imports the driver. Start with `store`, which is the port.

An operation is one function of the server, called in one round trip; `functions` has them, `sql` their statements. What
is rare or touches several runs is decided in Python by `stores.operations` on a working set (`unit_of_work`), which the
kit in `stores.working` provides: a `load_document` says what to lock and load, and the changes are written back.

An operation is a script (`scripts`), a generator of statements. Small ones run on the event loop (`loop_session`, on an
`async_connection`). The others, and those that have to be repeated, run in `sessions`, which are threads with a
connection each, or on a connection of the user (`user_connections`). The `connector` knows whether the server is
reachable. `hints` go to listeners of this process, and to other processes by `notify`.
"""

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
