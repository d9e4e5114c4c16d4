"""What is made of signals: hooks of users, and metrics. Nothing here changes a run.

Start with `hooks` and `metrics`. Only `app` and what stands above it import from here.
"""
