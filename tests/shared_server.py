"""One server for all processes of a test run, for example the workers of pytest-xdist.

The first process starts it; it ends after the last one has left or died.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar


class PrivateServer(Protocol):
    """A server of the tests, in a folder of its own."""

    @property
    def folder(self) -> Path: ...

    def start(self) -> Any: ...

    def close(self) -> None: ...


S = TypeVar("S", bound=PrivateServer)


def shared(folder: Path, name: str, in_use: Callable[[Path], S | None], make: Callable[[], S]) -> S:
    """Return the server with this name that is the same for all processes that name the same `folder`.

    `in_use` returns the server that another process has started in a folder, or None if it is gone.
    """
    place = folder / f"{name}.folder"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            server = in_use(Path(place.read_text(encoding="utf-8")))
            if server is not None:
                return server
        server = make()
        try:
            server.start()
        except BaseException:
            server.close()
            raise
        place.write_text(str(server.folder), encoding="utf-8")
        return server
