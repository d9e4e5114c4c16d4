"""The actor: whom the audit names for what is done on the command line."""

from __future__ import annotations

import getpass
import os

LOGIN_LIMIT = 100


def actor() -> str:
    """`cli:` and the login of the user who runs the command; the user's number, if there is no login."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may have no entry and no variable
        login = f"uid-{os.getuid()}"
    # A variable may name the user, and have anything in it. It must not keep a person from controlling a run.
    return "cli:" + login.encode(errors="backslashreplace").decode()[:LOGIN_LIMIT]
