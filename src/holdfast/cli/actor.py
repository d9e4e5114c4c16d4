"""The actor: whom the audit names for what is done on the command line."""

from __future__ import annotations

import getpass
import os


def actor() -> str:
    """`cli:` and the login of whoever runs the command; the number of the user, if it has no name here."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # in a container, a user may have no entry and no variable
        return f"cli:uid-{os.getuid()}"
