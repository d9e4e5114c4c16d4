"""The store kit: what a store needs that keeps runs in a database which this process can only load parts of.

An operation is about a few runs. `LoadRequest` says what to load, the store loads it, `decide` lets the operations of
`stores.operations` decide on it, and the store writes the `Changes`. An operation that needs something which was not
loaded raises `NotLoaded`; then the store starts over and loads more. Nothing here imports a driver.

A new store supplies the loading, the writing, claims and reads; `docs/write-a-store.md` shows how.
"""
