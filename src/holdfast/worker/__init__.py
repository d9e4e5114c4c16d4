"""The worker: claims runs, drives their turns, executes step bodies and writes checkpoints in groups.

Start with `worker`; `run_driver` drives one held run. Of the library, only `app` and the edges import from here.
"""
