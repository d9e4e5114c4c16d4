"""Free ports for the private servers of tests."""

from __future__ import annotations

import random
import socket

from holdfast.core.errors import StoreUnavailable

HOST = "127.0.0.1"
_PORTS = range(15_000, 32_000)
"""Below the ports that the system gives to clients, which could take ours while a server is down."""


def free_port() -> int:
    """Return a port that nothing uses at the moment."""
    # Not by the random numbers of the tests: those begin alike in every test and every worker.
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise StoreUnavailable(f"no port between {_PORTS.start} and {_PORTS.stop} seems to be free")
