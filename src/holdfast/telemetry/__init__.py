"""Consumers of signals: users' hooks, and metrics. Nothing here changes a run.

Start reading with `hooks` and `metrics`. Only `app` and the layers above it import this package.
"""
