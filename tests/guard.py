"""The guard: ends a server of the tests when the last process that uses it has gone, even by SIGKILL.

A user of the server holds a shared lock on the file `users` in its folder. The guard waits in the background for the
exclusive one, which the system grants when the last user has ended, however it did. Then it runs a command that stops
the server and removes the folder. A process that holds the lock may do both earlier.

It runs as a script, by a Python that need not find holdfast: it imports the standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_STOP_SECONDS = 240.0
"""Equal to `patience.GUARD_SECONDS`, which cannot be imported here."""


def set_guard(folder: Path, stop: Sequence[str], *, user: int | None = None) -> None:
    """Stop the server in `folder` by a command, as some user, and remove the folder after its last use."""
    subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(folder), json.dumps(list(stop)), json.dumps(user)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        check=True,
    )


def as_user(user: int | None) -> dict[str, Any]:
    """Return the options of `subprocess` that run a command as this user; None is the current one."""
    return {} if user is None else {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}


def use(folder: Path) -> IO[bytes] | None:
    """Hold a guarded folder until the file is closed. Return None if it has no users and is being removed."""
    path = folder / "users"
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    if not path.exists():  # removed between the two
        file.close()
        return None
    return file


def _wait_and_stop(folder: str, stop: list[str], user: int | None) -> None:
    try:
        file = os.open(f"{folder}/users", os.O_RDONLY)
    except FileNotFoundError:
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    # It may have been stopped and removed before, or may not respond.
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(stop, cwd="/", timeout=_STOP_SECONDS, check=False, **as_user(user))
    shutil.rmtree(folder, ignore_errors=True)


def _go_into_background() -> None:
    """Detach from the parent, its terminal and its streams, so that neither waits for this process nor ends it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    _go_into_background()
    _wait_and_stop(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
