"""`make test-pythons`: the tests on each CPython that is installed.

`discovery.py` finds the interpreters, `environment.py` creates an environment for one of them, `trial.py` runs the
tests in it, and `__main__.py` is the command.
"""
