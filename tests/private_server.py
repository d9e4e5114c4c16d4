"""The base of the private servers of tests: a server in a temporary folder, on a free port, with one life.

It ends with the process that uses it, however that ends, and its folder goes with it. Processes that name the same
folder share one server, for example the workers of pytest-xdist: the first process starts it, and it ends after the
last one has left or died.
"""

from __future__ import annotations

import fcntl
import random
import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.testing.patience import GUARD_SECONDS
from tests.guard import set_guard, use

HOST = "127.0.0.1"
_PORTS = range(15_000, 32_000)
"""Below the ports that the system gives to clients, which could take ours while a server is down."""
_TAIL_CHARACTERS = 2_000


class Address(Protocol):
    """The data that another process needs to use a server, besides its folder."""

    @property
    def port(self) -> int: ...


A = TypeVar("A", bound=Address)


class PrivateServer(ABC, Generic[A]):
    """A private server. It exists from the first `start` until `close`; `stop` and `start` keep its data."""

    product: ClassVar[str]
    """The name of the server in messages."""
    poll_seconds: ClassVar[float]
    """Time between two checks of a condition."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._address: A | None = None
        self._users: IO[bytes] | None = None
        """The shared lock on the folder: as long as somebody holds it, the server runs."""

    # What a server adds

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The process of the server; None if it does not run."""

    @abstractmethod
    def start(self) -> Self:
        """Start the server, the first time without data; return when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server in order, if it runs; its data stays."""

    @abstractmethod
    def kill(self) -> None:
        """Send SIGKILL to the server. What it has confirmed stays."""

    @abstractmethod
    def _end(self) -> None:
        """End the server by the shortest way; its data is not needed again."""

    @classmethod
    @abstractmethod
    def _address_type(cls) -> type[A]: ...

    # Location

    @property
    def folder(self) -> Path:
        """The temporary folder with all files of this server."""
        if self._folder is None:
            raise self._absent()
        return self._folder

    @property
    def port(self) -> int:
        return self._known.port

    @property
    def log(self) -> str:
        """The log of the server."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def _known(self) -> A:
        if self._address is None:
            raise self._absent()
        return self._address

    # Lifecycle

    @classmethod
    def shared(cls, folder: Path, make: Callable[[], Self]) -> Self:
        """Return the server of this kind that is the same for all processes that name the same `folder`."""
        name = cls.product.lower()
        place = folder / f"{name}.folder"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if place.exists():
                server = cls._in_use(Path(place.read_text(encoding="utf-8")))
                if server is not None:
                    return server
            server = make()
            server.__enter__()
            place.write_text(str(server.folder), encoding="utf-8")
            return server

    def restart(self) -> None:
        """Stop the server, and start it with the same data on the same port."""
        self.stop()
        self.start()

    def leave(self) -> None:
        """Stop using the server; it ends with its last user."""
        if self._users is not None:
            self._users.close()
        self._users = self._folder = self._address = None

    def close(self) -> None:
        """End the server regardless of its users, and remove its folder."""
        if self._folder is not None:
            self._end()
            shutil.rmtree(self._folder, ignore_errors=True)
        self.leave()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # For the servers

    @classmethod
    def _in_use(cls, folder: Path) -> Self | None:
        """Return the server that another process has started in `folder`; None if it is gone."""
        users = use(folder)
        if users is None:
            return None
        server = cls()
        server._folder = folder
        server._address = msgspec.json.decode((folder / "address.json").read_bytes(), type=cls._address_type())
        server._users = users
        return server

    def _settle(self, folder: Path) -> None:
        """Take this new folder, and hold it."""
        self._folder = folder
        (folder / "users").touch()
        self._users = use(folder)

    def _set_guard(self, stop: Sequence[str], *, user: int | None = None) -> None:
        """Have the server stopped by a command, as some user, after its last use."""
        set_guard(self.folder, stop, user=user)

    def _publish(self) -> None:
        """Let other processes find the address."""
        (self.folder / "address.json").write_bytes(msgspec.json.encode(self._known))

    def _until(self, verb: str, is_done: Callable[[], bool]) -> None:
        limit = time.monotonic() + GUARD_SECONDS
        while not is_done():
            if time.monotonic() > limit:
                raise self._trouble(verb)
            time.sleep(self.poll_seconds)

    def _trouble(self, verb: str) -> StoreUnavailable:
        output = self.log[-_TAIL_CHARACTERS:].strip()
        return StoreUnavailable(f"the private {self.product} server did not {verb}; it said: {output or 'nothing'}")

    def _absent(self) -> InvalidRequest:
        return InvalidRequest(f"this {self.product} server has not been started, or is closed")


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
