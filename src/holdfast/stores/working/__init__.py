"""The store kit: the base for a store whose runs are in a database, of which a process loads only parts.

An operation needs only a few runs. `LoadRequest` says what to load, and the store loads it. `decide` runs an operation
of `stores.operations` on it, and the store writes the `Changes`. If the operation needs something that was not loaded,
it raises `NotLoaded`. Then the store starts over and loads more. Nothing here imports a driver.

A new store supplies loading, writing, claims and reads. `docs/write-a-store.md` shows how.
"""
