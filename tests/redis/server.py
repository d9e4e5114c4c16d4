"""A private Redis or Valkey server in a temporary folder, on a free port, that ends with the process that uses it.

    with RedisServer({"appendfsync": "everysec"}) as server:
        redis.Redis.from_url(server.url)

By default it keeps everything that it has confirmed, and never evicts. A server with TLS is a `RedisProxy` with a
certificate in front of this one: the server of the wheel is built without TLS.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import quote

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.testing.patience import GUARD_SECONDS
from tests.guard import set_guard, use
from tests.ports import HOST, free_port
from tests.redis import process
from tests.redis.installation import RedisInstallation, find_redis
from tests.redis.settings import DEFAULTS, Setting, text_of, words_of

_ADMINISTRATOR = "holdfast-tests"
"""The user by which the tests control a server, whatever other users may do there."""
_IN_USE = "Address already in use"
_CLOSED_PORT = 1
"""A port on which nothing listens."""
_POLL_SECONDS = 0.005
_PROBE_SECONDS = 5.0
_STOP_SECONDS = 0.5
_TAIL_CHARACTERS = 2_000


class _Address(msgspec.Struct, frozen=True):
    """The data that another process needs to use a server, besides its folder."""

    port: int
    secret: str
    program: str
    product: str
    version: str


class RedisServer:
    """A private server. It exists from the first `start` until `close`; `stop`, `kill` and `start` keep its data.

    `settings` are those of `redis.conf`. A change of them takes effect at the next start.
    """

    def __init__(
        self,
        settings: Mapping[str, Setting] | None = None,
        *,
        replica_of: RedisServer | None = None,
        installation: RedisInstallation | None = None,
    ) -> None:
        self.settings: dict[str, Setting] = {**DEFAULTS, **(settings or {})}
        self._primary = replica_of
        self._is_cut_off = False
        self._installation = installation
        self._folder: Path | None = None
        self._address: _Address | None = None
        self._used: IO[bytes] | None = None
        self._has_fixed_port = False

    @classmethod
    def in_use(cls, folder: Path) -> RedisServer | None:
        """Return the server that another process has started in `folder`; None if it is gone."""
        used = use(folder)
        if used is None:
            return None
        server = cls()
        server._folder = folder
        server._address = msgspec.json.decode((folder / "address.json").read_bytes(), type=_Address)
        server._used = used
        return server

    # Location

    @property
    def folder(self) -> Path:
        """The temporary folder with all files of this server."""
        if self._folder is None:
            raise InvalidRequest("this Redis server has not been started, or is closed")
        return self._folder

    @property
    def port(self) -> int:
        return self._known.port

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
    def log(self) -> str:
        """The log of the server."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

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
        limit = time.monotonic() + GUARD_SECONDS
        while not self._has_started(limit):
            self._wait(limit, "start")
        if self._primary is not None and not self._is_cut_off:
            self._follow(self._primary)
        return self

    def stop(self) -> None:
        """Stop the server in order, if it runs; its data stays."""
        self.resume()
        limit = time.monotonic() + GUARD_SECONDS
        process.send_signal(self.folder, signal.SIGTERM)
        while not process.wait_for_end(self.folder, _STOP_SECONDS):
            # Again: a server forgets the signal if it gets it while it begins its log.
            process.send_signal(self.folder, signal.SIGTERM)
            self._wait(limit, "stop")

    def kill(self) -> None:
        """Send SIGKILL to the server. Its data stays as it was at that instant."""
        if not process.end(self.folder, GUARD_SECONDS):
            raise self._trouble("end")

    def restart(self) -> None:
        """Stop the server, and start it with the same data on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the server's process for a time: it keeps its connections, and answers nothing until `resume`."""
        process.send_signal(self.folder, signal.SIGSTOP)
        process.wait_for_stop(self.folder)

    def resume(self) -> None:
        process.send_signal(self.folder, signal.SIGCONT)

    def leave(self) -> None:
        """Stop using the server; it ends with its last user."""
        if self._used is not None:
            self._used.close()
        self._used = self._folder = self._address = None

    def close(self) -> None:
        """End the server regardless of its users, and remove its folder."""
        if self._folder is not None:
            process.end(self._folder, GUARD_SECONDS)
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
        told: dict[str, Any] = self.ask("INFO")
        return told

    # Replication

    def catch_up(self) -> None:
        """Wait until this replica has everything that its primary has now."""
        assert self._primary is not None, "this server is no replica"
        wanted = self._primary.info()["master_repl_offset"]
        limit = time.monotonic() + GUARD_SECONDS
        while not self._has_reached(wanted):
            self._wait(limit, "catch up with its primary")

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

    @property
    def _known(self) -> _Address:
        if self._address is None:
            raise InvalidRequest("this Redis server has not been started, or is closed")
        return self._address

    def _create(self) -> None:
        found = self._installation or find_redis()
        folder = self._folder = Path(tempfile.mkdtemp(prefix="holdfast-redis-"))
        (folder / "users").touch()
        self._used = use(folder)
        (folder / "data").mkdir()
        stop = [sys.executable, "-I", "-S", process.__file__, str(folder), str(GUARD_SECONDS)]
        set_guard(folder, stop)
        self._place(_Address(free_port(), secrets.token_hex(16), str(found.program), found.product, found.version))

    def _place(self, address: _Address) -> None:
        self._address = address
        (self.folder / "address.json").write_bytes(msgspec.json.encode(address))

    def _has_started(self, limit: float) -> bool:
        """Start the process once. Return False if another program has its port."""
        said = len(self.log)
        self._write_settings()
        process.spawn(self.folder, [self._known.program, str(self.folder / "redis.conf")])
        while not self._is_ready():
            if not process.is_running(self.folder):
                process.wait_for_end(self.folder, GUARD_SECONDS)
                if _IN_USE not in self.log[said:]:
                    raise self._trouble("start")
                if not self._has_fixed_port:
                    self._place(msgspec.structs.replace(self._known, port=free_port()))
                return False
            self._wait(limit, "start")
        self._has_fixed_port = True  # from now on, others know it
        return True

    def _is_ready(self) -> bool:
        try:
            # If another program has the port, this fails, because only the own server knows the secret.
            return not self.ask("INFO", seconds=_PROBE_SECONDS)["loading"]
        except (redis.RedisError, OSError):
            return False

    def _has_reached(self, offset: int) -> bool:
        told = self.info()
        return told["master_link_status"] == "up" and int(told["slave_repl_offset"]) >= offset

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

    def _wait(self, limit: float, verb: str) -> None:
        if time.monotonic() > limit:
            raise self._trouble(verb)
        time.sleep(_POLL_SECONDS)

    def _trouble(self, verb: str) -> StoreUnavailable:
        said = self.log[-_TAIL_CHARACTERS:].strip()
        return StoreUnavailable(f"the private Redis server did not {verb}; it said: {said or 'nothing'}")
