"""The Postgres store: any number of producers and workers on any number of machines. Only it imports `psycopg`.

Only `app` imports it, and only when a `postgresql:` URL is used. From the ground up: `address` (what a URL says),
`connections` (how one is made), `trouble` (what the driver reports), `sessions` (threads that run jobs on
connections of their own) and `bell` (hints from process to process).
"""
