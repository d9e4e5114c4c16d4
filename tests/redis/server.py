"""A private Redis or Valkey server in a temporary folder, on a free port, that ends with the process that uses it.

    with RedisServer({"appendfsync": "everysec"}) as server:
        redis.Redis.from_url(server.url)

By default it keeps everything that it has confirmed, and never evicts. A server with TLS is a `RedisProxy` with a
certificate in front of this one: the server of the wheel is built without TLS.
"""

from __future__ import annotations

import secrets
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.testing.patience import GUARD_SECONDS
from tests.private_server import HOST, PrivateServer, free_port
from tests.redis import process
from tests.redis.installation import RedisInstallation, find_redis
from tests.redis.settings import DEFAULTS, Setting, text_of, words_of

_ADMINISTRATOR = "holdfast-tests"
"""The user by which the tests control a server, whatever other users may do there."""
_IN_USE = "Address already in use"
_CLOSED_PORT = 1
"""A port on which nothing listens."""
_PROBE_SECONDS = 5.0
_STOP_SECONDS = 0.5


class _Address(msgspec.Struct, frozen=True):
    """The data that another process needs to use a server, besides its folder."""

    port: int
    secret: str
    program: str
    product: str
    version: str


class RedisServer(PrivateServer[_Address]):
    """A private server. `settings` are those of `redis.conf`. A change of them takes effect at the next start."""

    product = "Redis"
    poll_seconds = 0.005

    def __init__(
        self,
        settings: Mapping[str, Setting] | None = None,
        *,
        replica_of: RedisServer | None = None,
        installation: RedisInstallation | None = None,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Setting] = {**DEFAULTS, **(settings or {})}
        self._primary = replica_of
        self._is_cut_off = False
        self._installation = installation
        self._has_fixed_port = False

    @classmethod
    def _address_type(cls) -> type[_Address]:
        return _Address

    # Location

    @property
    def url(self) -> str:
        """The URL of database 0, with the password of the setting `requirepass`, if there is one."""
        return self.url_of(password=str(self.settings.get("requirepass", "")))

    def url_of(self, user: str = "", password: str = "", *, database: int = 0, namespace: str = "") -> str:
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
        query = f"?namespace={quote(namespace, safe='')}" if namespace else ""
        return f"redis://{login}{HOST}:{self.port}/{database}{query}"

    @property
    def installation(self) -> RedisInstallation:
        """The program it runs from."""
        known = self._known
        return RedisInstallation(Path(known.program), known.product, known.version)

    @property
    def pid(self) -> int | None:
        """The process of the server; None if it does not run."""
        return process.pid_of(self.folder)

    # Lifecycle

    def start(self) -> Self:
        """Start the server, the first time without data; return when it answers and has loaded its data."""
        if self._folder is None:
            self._create()
        if process.is_running(self.folder):
            return self
        self._until("start", self._has_started)
        if self._primary is not None and not self._is_cut_off:
            self._follow(self._primary)
        return self

    def stop(self) -> None:
        """Stop the server in order, if it runs; its data stays."""
        self.resume()
        self._until("stop", self._has_stopped)

    def kill(self) -> None:
        """Send SIGKILL to the server. Its data stays as it was at that instant."""
        if not process.end(self.folder, GUARD_SECONDS):
            raise self._trouble("end")

    def pause(self) -> None:
        """Stop the server's process for a time: it keeps its connections, and answers nothing until `resume`."""
        process.send_signal(self.folder, signal.SIGSTOP)
        process.wait_for_stop(self.folder)

    def resume(self) -> None:
        process.send_signal(self.folder, signal.SIGCONT)

    # Commands

    def ask(self, *words: str | int, seconds: float = GUARD_SECONDS) -> Any:
        """Execute one command as an administrator, on a connection of its own, and return the answer."""
        with redis.Redis(
            HOST,
            self.port,
            username=_ADMINISTRATOR,
            password=self._known.secret,
            decode_responses=True,
            socket_timeout=seconds,
            socket_connect_timeout=seconds,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            return client.execute_command(*words)

    def info(self) -> dict[str, Any]:
        """Return what the server says about itself, such as its `run_id`."""
        facts: dict[str, Any] = self.ask("INFO")
        return facts

    # Replication

    def catch_up(self) -> None:
        """Wait until this replica has everything that its primary has now."""
        assert self._primary is not None, "this server is no replica"
        wanted = self._primary.info()["master_repl_offset"]
        self._until("catch up with its primary", lambda: self._has_reached(wanted))

    def cut_off(self) -> None:
        """Separate this replica from its primary: it stays a replica, and gets no more writes until `rejoin`."""
        self._is_cut_off = True
        self.ask("REPLICAOF", HOST, _CLOSED_PORT)

    def rejoin(self, primary: RedisServer | None = None) -> None:
        """Follow the primary again, or another one, and return when this server has the same data."""
        self._primary = primary or self._primary
        assert self._primary is not None, "this server is no replica"
        self._is_cut_off = False
        self._follow(self._primary)
        self.catch_up()

    def promote(self) -> None:
        """Make this replica a primary, with the data that it has."""
        self.ask("REPLICAOF", "NO", "ONE")
        self._primary = None
        self._is_cut_off = False

    # Implementation

    def _end(self) -> None:
        process.end(self.folder, GUARD_SECONDS)

    def _create(self) -> None:
        found = self._installation or find_redis()
        folder = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
        self._settle(folder)
        (folder / "data").mkdir()
        self._set_guard([sys.executable, "-I", "-S", process.__file__, str(folder), str(GUARD_SECONDS)])
        self._address = _Address(free_port(), secrets.token_hex(16), str(found.program), found.product, found.version)
        self._publish()

    def _has_started(self) -> bool:
        """Start the process once. Return False if another program has its port."""
        seen = len(self.log)
        self._write_settings()
        process.spawn(self.folder, [self._known.program, str(self.folder / "redis.conf")])
        self._until("start", lambda: self._is_ready() or not process.is_running(self.folder))
        if process.is_running(self.folder):
            self._has_fixed_port = True  # from now on, others know it
            return True
        process.wait_for_end(self.folder, GUARD_SECONDS)
        if _IN_USE not in self.log[seen:]:
            raise self._trouble("start")
        if not self._has_fixed_port:
            self._address = msgspec.structs.replace(self._known, port=free_port())
            self._publish()
        return False

    def _has_stopped(self) -> bool:
        # Repeatedly: a server forgets the signal if it gets it while it begins its log.
        process.send_signal(self.folder, signal.SIGTERM)
        return process.wait_for_end(self.folder, _STOP_SECONDS)

    def _is_ready(self) -> bool:
        try:
            # If another program has the port, this fails, because only the own server knows the secret.
            return not self.ask("INFO", seconds=_PROBE_SECONDS)["loading"]
        except (redis.RedisError, OSError):
            return False

    def _has_reached(self, offset: int) -> bool:
        facts = self.info()
        return facts["master_link_status"] == "up" and int(facts["slave_repl_offset"]) >= offset

    def _write_settings(self) -> None:
        settings = {"bind": HOST, "port": self.port, "dir": f'"{self.folder / "data"}"', **self.settings}
        if self._primary is not None:
            settings["replicaof"] = f"{HOST} {_CLOSED_PORT}"  # `start` lets it follow at once, which this does not
        administrator = f"{_ADMINISTRATOR} on >{self._known.secret} ~* &* +@all"
        settings["user"] = (administrator, *words_of(settings.get("user", ())))
        path = self.folder / "redis.conf"
        path.touch(mode=0o600)
        path.write_text(text_of(settings), encoding="utf-8")

    def _follow(self, primary: RedisServer) -> None:
        self.ask("CONFIG", "SET", "masteruser", _ADMINISTRATOR)
        self.ask("CONFIG", "SET", "masterauth", primary._known.secret)
        self.ask("REPLICAOF", HOST, primary.port)
