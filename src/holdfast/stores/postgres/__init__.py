"""The Postgres store: any number of producers and workers on any number of machines share one database.

Only `app` and `testing` import it; only this package imports the driver.
"""
