"""The Postgres store: any number of producers and workers on any number of machines share one database.

Only `app` and `testing` import this package, and only this package imports the driver. Start with `store`, which is
the port.

Hot operations are one server function each, called in one round trip. `functions` holds the functions, `scripts` the
statements that call them. Operations that are rare or touch several runs are decided in Python: `stores.operations`
decides on rows that were locked and loaded (`unit_of_work`), with the kit in `stores.workspace`. The store then writes
the changes.

Each operation is a script (`scripts`): a generator of statements. Small scripts run on the event loop (`loop_session`).
Large scripts and repeated ones run in `sessions`, which are threads with one connection each. Operations in a user's
transaction run on the user's connection (`database`). `connections` tracks whether the server is reachable.
`hints` go to listeners in this process and, by notifications, to other processes.
"""

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
