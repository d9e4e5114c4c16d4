"""A lifeline between a worker process and its supervisor: a pair of sockets, one end for each.

The worker reports through it that it is ready. If the supervisor dies, for any reason, the worker sees the end of the
stream at once. Then the worker stops too, so that no orphaned process is left.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress

VARIABLE = "HOLDFAST_LIFELINE"
"""Environment variable of a worker process: the number of the worker and the file descriptor of its socket."""

AFTER_GRACE_SECONDS = 15.0
"""Time that a worker may take after its grace period, to give runs back and to exit the interpreter."""

_READY = b"r"


class Lifeline:
    """The worker's end of the lifeline."""

    def __init__(self, number: int, line: socket.socket) -> None:
        self.number = number
        self._line = line

    @classmethod
    def taken(cls) -> Lifeline | None:
        """Take the lifeline of this process, or return None without a supervisor. Child processes do not inherit it."""
        given = os.environ.pop(VARIABLE, None)
        if given is None:
            return None
        number, _, descriptor = given.partition(":")
        line = socket.socket(fileno=int(descriptor))
        line.set_inheritable(False)
        return cls(int(number), line)

    def hold(self, grace_seconds: float) -> None:
        """Stop this process as soon as its supervisor is gone.

        A thread watches the lifeline, so that the process ends even if its event loop hangs.
        """
        threading.Thread(target=self._watch, args=[grace_seconds], name="holdfast-lifeline", daemon=True).start()

    def say_ready(self) -> None:
        """Tell the supervisor that this worker is ready."""
        with suppress(OSError):  # the supervisor is gone; the thread handles it
            self._line.sendall(_READY)

    def _watch(self, grace_seconds: float) -> None:
        with suppress(OSError):
            while self._line.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_seconds + AFTER_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)
