"""The Postgres store: any number of producers and workers on any number of machines share one database.

Only `app` and `testing` import it; only this package imports the driver. Start with `store`, which is the port.

An operation is one function of the server, called in one trip; `functions` has them, `calls` their statements. What
is rare or touches several runs is decided in Python by `stores.operations` on a working set (`deciding`), which the kit
in `stores.working` provides: a `load_document` says what to lock and load, and the changes are written back.

Whatever an operation says to the server is a talk (`talks`), and one of these carries it: the `loop_session`, which
has a connection of the event loop itself (`async_connection`), for what is small; `sessions`, threads with a connection
each, for the rest and for whatever has to be repeated; or a connection of a user's (`outsiders`). The `connector` knows
whether the server is there. Hints go out and come in through the `bell`, between processes over a `line`.
"""

from holdfast.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
