"""The executors' door: claims runs, drives their turns, executes step bodies, writes checkpoints together.

Start with `worker`; `held` is one run in a worker's hands. Only `app` imports from here.
"""
