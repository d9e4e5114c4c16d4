"""A lifeline between a worker process and its supervisor: a pair of sockets, one end for each.

The worker says through it that it can work. That the supervisor is gone shows at once, whatever it died of, as the end
of the stream: then the worker stops too, so that no process is left that nobody knows of.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress

VARIABLE = "HOLDFAST_LIFELINE"
"""For the process that is started only: the number of the worker among its like, and that of its end of the line."""

AFTER_GRACE_SECONDS = 15.0
"""How long a worker may take beyond its grace: for giving runs back, and for whatever ends with the interpreter."""

_READY = b"r"


class Lifeline:
    """A worker's end."""

    def __init__(self, number: int, line: socket.socket) -> None:
        self.number = number
        self._line = line

    @classmethod
    def taken(cls) -> Lifeline | None:
        """The lifeline this process was given, if it has a supervisor. It is not for processes that it starts."""
        given = os.environ.pop(VARIABLE, None)
        if given is None:
            return None
        number, _, descriptor = given.partition(":")
        line = socket.socket(fileno=int(descriptor))
        line.set_inheritable(False)
        return cls(int(number), line)

    def hold(self, grace_seconds: float) -> None:
        """Stop this process as soon as its supervisor is gone.

        In a thread, so that an event loop that hangs does not keep it from ending in the end.
        """
        threading.Thread(target=self._watch, args=[grace_seconds], name="holdfast-lifeline", daemon=True).start()

    def say_ready(self) -> None:
        """Tell the supervisor that this worker can work."""
        with suppress(OSError):  # nobody is there; the thread knows
            self._line.sendall(_READY)

    def _watch(self, grace_seconds: float) -> None:
        with suppress(OSError):
            while self._line.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_seconds + AFTER_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)
