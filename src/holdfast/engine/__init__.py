"""The API for producers: start, read, message and control runs. It needs no worker and no workflow code.

Start with `session`. `starting` creates runs, and `handle` is the object for one run. `app` combines the parts.
"""
