"""The actor: the name that the audit records for commands."""

from __future__ import annotations

import getpass
import os

LOGIN_LIMIT = 100


def actor() -> str:
    """Return `cli:` and the login of the user who runs the command, or the user id if there is no login."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError):  # in a container, a user may have neither a passwd entry nor a variable
        login = f"uid-{os.getuid()}"
    # The login may come from an environment variable with any content, which must not make the command fail.
    return "cli:" + login.encode(errors="backslashreplace").decode()[:LOGIN_LIMIT]
