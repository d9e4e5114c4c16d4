"""A private Postgres server: a cluster in a temporary folder, on a free port, that ends with the process that uses it.

    with PostgresServer() as server:
        psycopg.connect(server.url)

It has the default durability of Postgres. Postgres refuses to run as root: then it runs as an unprivileged user.
"""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

import msgspec

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.testing.patience import GUARD_SECONDS
from tests.folders import folder_for
from tests.guard import as_user
from tests.postgres.installation import Installation, find_installation
from tests.private_server import HOST, PrivateServer, free_port

ROLE = "postgres"
"""The superuser of a private cluster. With the name of a store's schema, its tables would be created in there."""

StopMode = Literal["smart", "fast", "immediate"]
"""Ways to stop: wait for sessions to end, interrupt them, or crash, so that the next start recovers."""

_PASSING = ("Address already in use", "pre-existing shared memory block", "is still in use")
"""Temporary reasons for a failed start: the port is in use, or a child of a killed server still lives."""


class _Address(msgspec.Struct, frozen=True):
    """The data that another process needs to use a cluster, besides its folder."""

    port: int
    password: str
    bin: str
    version: int
    user: int | None


class PostgresServer(PrivateServer[_Address]):
    """A private cluster."""

    product = "Postgres"
    poll_seconds = 0.05

    def __init__(
        self,
        version: int | None = None,
        *,
        installation: Installation | None = None,
        settings: Mapping[str, object] | None = None,
        in_memory: bool = False,
    ) -> None:
        super().__init__()
        self._wanted = (version, installation)
        self._in_memory = in_memory
        self._settings = {"max_connections": 200, **(settings or {})}

    @classmethod
    def _address_type(cls) -> type[_Address]:
        return _Address

    # Location

    @property
    def url(self) -> str:
        """The URL of the database `postgres`, as a superuser."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        # Without encryption, which no server here offers, so that a proxy can read the traffic.
        return (
            f"postgresql://{ROLE}:{self._known.password}@{HOST}:{self.port}/{database}"
            "?sslmode=disable&gssencmode=disable"
        )

    @property
    def installation(self) -> Installation:
        """The binaries it runs from, including `psql`."""
        return Installation(Path(self._known.bin), self._known.version)

    @property
    def pid(self) -> int | None:
        """The parent process of the server; None if it does not run."""
        try:
            pid = int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        return pid if _is_alive(pid) else None

    # Lifecycle

    def start(self) -> Self:
        """Start the server, the first time in a new cluster; return when it accepts connections."""
        if self._folder is None:
            self._create()
        self._until("start", self._has_started)
        return self

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, if it runs; its data stays."""
        if self.pid is not None:
            self._until("stop", lambda: self._controlled("stop", "-m", mode) or self.pid is None)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Send SIGKILL to all its processes. The next start recovers all commits."""
        pid = self.pid
        if pid is None:
            return
        children = _children(pid)
        os.kill(pid, signal.SIGKILL)  # the parent first, because it would start new children
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._until("end", lambda: not any(map(_is_alive, (pid, *children))))
        # Where no process reaps zombies, the next start would take it for alive.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    # Implementation

    def _end(self) -> None:
        self.stop("immediate")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _create(self) -> None:
        version, installation = self._wanted
        found = installation or find_installation(version)
        user = _unprivileged_user()
        folder = folder_for(user, "holdfast-postgres-", in_memory=self._in_memory)
        self._settle(folder)
        usable = found.usable_by(user, folder)
        stop = [str(usable.bin / "pg_ctl"), "-D", str(folder / "data"), "-m", "immediate", "-w", "stop"]
        self._set_guard(stop, user=user)
        self._address = _Address(free_port(), secrets.token_hex(16), str(usable.bin), usable.version, user)
        self._initialize()
        self._publish()

    def _initialize(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self._known.password, encoding="ascii")
        if self._known.user is not None:
            os.chown(secret, self._known.user, -1)
        words = ["--username", ROLE, "--pwfile", str(secret), "--auth-local", "trust", "--auth-host", "scram-sha-256"]
        words += ["--encoding", "UTF8", "--locale", "C", "--no-sync"]
        if self._known.version >= 16:
            # A password of this length needs no slow hash, and tests connect often.
            words += ["-c", "scram_iterations=1"]
        made = self._run("initdb", *words)
        if made.returncode != 0:
            raise StoreUnavailable(f"initdb of Postgres {self._known.version} failed: {made.stderr or made.stdout}")
        settings = {
            "listen_addresses": HOST,
            "port": self._known.port,
            "unix_socket_directories": "",  # a temporary folder may have a longer path than a socket allows
            **self._settings,
        }
        lines = "".join(f"{name} = {_quoted(value)}\n" for name, value in settings.items())
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(lines)

    def _has_started(self) -> bool:
        seen = len(self.log)
        if self._controlled("start", "-l", str(self.folder / "server.log")):
            return True
        if not any(words in self.log[seen:] for words in _PASSING):
            raise self._trouble("start")
        return False

    def _controlled(self, verb: str, *words: str) -> bool:
        return self._run("pg_ctl", verb, "-w", "-t", str(round(GUARD_SECONDS)), *words).returncode == 0

    def _run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PG", "LC_"))}
        return subprocess.run(
            [Path(self._known.bin) / name, "-D", str(self._data), *words],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **as_user(self._known.user),
        )


def _quoted(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def _unprivileged_user() -> int | None:
    """Return the user that Postgres runs as; None for the current one."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise InvalidRequest("Postgres does not run as root, and there is no user `postgres` or `nobody` to run it as")


def _children(pid: int) -> list[int]:
    """Return the processes of a server, where the system shows them; elsewhere they notice its death themselves."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except FileNotFoundError:
        return []


def _is_alive(pid: int) -> bool:
    """True if a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except FileNotFoundError:
        return not Path("/proc/self").exists()
