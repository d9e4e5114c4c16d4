"""The workspace kit: load, decide, write, for stores of which a process loads only parts.

The operations of `stores.operations` decide on what a workspace has loaded. A read of something that was not loaded
raises `Missing`, which names the read. Then the store loads it too, and the operation starts over. So what an operation
reads is what is loaded, and no list of needed data has to be kept in step with the operations.

- `decision` has `Missing`, `BaseWorkspace` and the rounds of one operation. The key-value stores use only this.
- `reads`, `rows`, `row_unit` and `row_changes` are for stores on a database: their workspace is loaded, locked rows.

Nothing here imports a driver. `docs/store-on-a-database.md` shows how to use it.
"""
