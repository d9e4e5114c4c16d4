"""The process of a private server: it runs in the background, and any process can find and end it.

The server inherits a lock on the file `alive` in its folder. The system releases the lock when the server and its
children have ended, however they did. So a look at the lock is right even if nobody has waited for the end of the
process, or if another process has the same id now.

The guard runs this file as a script, to end the server in a folder. It imports the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# The shell records its process id, which the server then has, before there is a server. Otherwise the guard could miss
# a server whose starter is killed.
_LAUNCH = 'echo $$ >"$0" && exec "$@"'
_POLL_SECONDS = 0.005


def spawn(folder: Path, command: Sequence[str]) -> None:
    """Start a server in a process group of its own. Its output goes to `server.log` in the folder."""
    (folder / "pid").unlink(missing_ok=True)
    lock = os.open(folder / "alive", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock, True)  # noqa: FBT003  it takes no keywords
        # Not `subprocess.Popen`, which warns if its process outlives it: a shared server outlives its starter.
        os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _LAUNCH, str(folder / "pid"), *command],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(folder / "server.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setpgroup=0,  # so that Ctrl-C in a terminal does not end it before the tests end
        )
    finally:
        os.close(lock)


def is_running(folder: Path) -> bool:
    try:
        file = (folder / "alive").open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def pid_of(folder: Path) -> int | None:
    """Return the process id of the server; None if it does not run, or has not recorded its id yet."""
    if not is_running(folder):
        return None
    try:
        return int((folder / "pid").read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None


def send_signal(folder: Path, number: signal.Signals) -> None:
    """Send a signal to the server and to the children that write its files, if it runs."""
    pid = pid_of(folder)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.killpg(pid, number)


def wait_for_stop(folder: Path) -> None:
    """Wait until a child of this process has been stopped by SIGSTOP, which takes effect a little after the call."""
    pid = pid_of(folder)
    if pid is not None:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WUNTRACED)


def wait_for_end(folder: Path, seconds: float) -> bool:
    """Wait until the server has ended. Return False if it still runs after that many seconds."""
    limit = time.monotonic() + seconds
    while is_running(folder):
        if time.monotonic() > limit:
            return False
        time.sleep(_POLL_SECONDS)
    record = folder / "pid"
    with suppress(FileNotFoundError, ValueError, ChildProcessError):
        os.waitpid(int(record.read_text(encoding="ascii")), 0)  # the parent has a zombie to remove
    record.unlink(missing_ok=True)  # the id may become that of another process
    return True


def end(folder: Path, seconds: float) -> bool:
    """End the server by SIGKILL. Return False if it still runs after that many seconds."""
    limit = time.monotonic() + seconds
    while is_running(folder):
        if time.monotonic() > limit:
            return False
        # Again each time: it may not have recorded its process id yet.
        send_signal(folder, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    return wait_for_end(folder, seconds)


if __name__ == "__main__":
    end(Path(sys.argv[1]), float(sys.argv[2]))
