"""The supervisor: keeps a number of worker processes alive, and ends with them.

It never loads the application, so application code cannot crash it. The first process starts alone, and the others
start when it is ready. So a mistake is reported once, and ends the command as it would with a single process.

A lifeline connects each worker process with the supervisor: a pair of sockets, one end for each. The worker reports
through it that it is ready. If the supervisor dies, for any reason, the worker sees the end of the stream at once. Then
the worker stops too, so that no orphaned process is left.

The reloader is a supervisor for development: it restarts one process when the code of its application changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.cli.exits import ExitCode
from holdfast.config.configuration import OWN_NAME, PROJECT_NAME
from holdfast.worker.shutdown import Shutdown

_MEANINGFUL = frozenset(ExitCode) - {ExitCode.OK}
_EXPECTED = frozenset({ExitCode.OK, ExitCode.INTERRUPTED, -signal.SIGTERM, -signal.SIGINT})

VARIABLE = "HOLDFAST_LIFELINE"
"""Environment variable of a worker process: the number of the worker and the file descriptor of its socket."""

AFTER_GRACE_SECONDS = 15.0
"""Time that a worker may take after its grace period, to give runs back and to exit the interpreter."""

_READY = b"r"

POLL_SECONDS = 0.3

_LEFT_OUT = {"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"}
_NAMES = {OWN_NAME, PROJECT_NAME}

_log = logging.getLogger("holdfast.supervisor")


@dataclass(frozen=True)
class Patience:
    """Restart policy for processes that end again and again.

    The supervisor replaces an ended process at once. From the second end within `steady_seconds` of the start on, it
    pauses first, twice as long each time. It gives up when every process has failed `starts` times in a row before it
    was ready.
    """

    steady_seconds: float = 10.0
    first_pause_seconds: float = 0.5
    last_pause_seconds: float = 30.0
    starts: int = 6

    def pause_seconds(self, quick_ends: int) -> float:
        """Return the pause after this number of quick ends in a row."""
        if quick_ends <= 1:
            return 0.0
        return float(min(self.last_pause_seconds, self.first_pause_seconds * 2.0 ** min(quick_ends - 2, 30)))


class Place:
    """A slot for one worker process: the current process, and the failures of its predecessors."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.is_ready = False
        self.failed_starts = 0
        self.quick_ends = 0

    @property
    def name(self) -> str:
        pid = "" if self.process is None else f" (pid {self.process.pid})"
        return f"worker process {self.number}{pid}"

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Runs `count` processes of a command. `command` returns the command line for the number of a process."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        count: int,
        *,
        grace_seconds: float,
        ends_when_idle: bool = False,
        patience: Patience | None = None,
    ) -> None:
        self._command = command
        self._places = [Place(number + 1) for number in range(count)]
        self._grace_seconds = grace_seconds
        self._ends_when_idle = ends_when_idle
        self._patience = patience or Patience()
        self._shutdown = Shutdown()
        self._is_proven = asyncio.Event()
        self._is_over = asyncio.Event()
        self._code = ExitCode.OK

    async def run(self) -> ExitCode:
        """Supervise until SIGTERM or SIGINT, or with `ends_when_idle` until all are idle. Return the exit code.

        Each process gets its grace period. A second signal ends the grace period, and a third kills the processes.
        """
        with self._shutdown.from_person():
            stopping = asyncio.create_task(self._stop_when_ordered())
            try:
                async with asyncio.TaskGroup() as keepers:
                    for place in self._places:
                        keepers.create_task(self._keep(place))
            finally:
                for place in self._places:
                    place.signal(signal.SIGKILL)
                self._is_over.set()
                await stopping
        return self._code

    # Keeping them alive

    async def _keep(self, place: Place) -> None:
        if place is not self._places[0]:
            await self._unless_stopped(self._is_proven.wait())
        while not self._shutdown.stop.is_set():
            began = asyncio.get_running_loop().time()
            code = await self._run_process(place)
            if self._shutdown.stop.is_set():
                # A process that has not installed its signal handlers yet dies of the signal itself.
                if code not in _EXPECTED:
                    _log.warning("%s %s during shutdown", place.name, _fate(code))
                    self._code = self._code or ExitCode.FAILED
            elif code == ExitCode.OK and self._ends_when_idle:
                return
            else:
                await self._judge(place, code, asyncio.get_running_loop().time() - began)

    async def _run_process(self, place: Place) -> int:
        """Start a process and wait for its end. Return the exit code, negative if a signal killed it."""
        place.process, place.is_ready = None, False
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(0)
            with theirs:
                try:
                    place.process = await asyncio.create_subprocess_exec(
                        *self._command(place.number),
                        env=os.environ | {VARIABLE: f"{place.number}:{theirs.fileno()}"},
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        process_group=0,  # so that ^C in a terminal reaches only the supervisor, which passes it on
                    )
                except OSError as error:
                    _log.error("cannot start %s: %s", place.name, error)
                    return ExitCode.FAILED
            if self._shutdown.stop.is_set():  # the order to stop came before this process existed
                place.signal(signal.SIGTERM)
            loop.add_reader(ours, self._read_readiness, place, ours)
            try:
                return await place.process.wait()
            finally:
                loop.remove_reader(ours)

    def _read_readiness(self, place: Place, line: socket.socket) -> None:
        """Note that the process is ready, or has ended before it was."""
        asyncio.get_running_loop().remove_reader(line)
        with suppress(OSError):
            place.is_ready = bool(line.recv(1))
        if place.is_ready:
            place.failed_starts = 0
            self._is_proven.set()

    async def _judge(self, place: Place, code: int, seconds: float) -> None:
        """Handle a process that ended without an order to stop: restart it after a pause, or give up."""
        if not place.is_ready:
            place.failed_starts += 1
            is_hopeless = all(one.failed_starts >= self._patience.starts for one in self._places)
            if is_hopeless or not self._is_proven.is_set():
                self._give_up(code)
                return
        place.quick_ends = place.quick_ends + 1 if seconds < self._patience.steady_seconds else 0
        pause = self._patience.pause_seconds(place.quick_ends)
        soon = f"in {pause:g} s" if pause else "now"
        when = "" if place.is_ready else " before it was ready"
        _log.warning("%s %s%s; starting another one %s", place.name, _fate(code), when, soon)
        if pause:
            await self._unless_stopped(asyncio.sleep(pause))

    def _give_up(self, code: int) -> None:
        _log.error("giving up: worker processes fail before they are ready; the last one %s", _fate(code))
        self._code = ExitCode(code) if code in _MEANINGFUL else ExitCode.FAILED
        self._shutdown.stop.set()

    async def _unless_stopped(self, something: Coroutine[Any, Any, object]) -> None:
        """Wait for a coroutine, or until the order to stop."""
        await _first_of(something, self._shutdown.stop.wait())

    # Ending them

    async def _stop_when_ordered(self) -> None:
        """Stop all processes when ordered to: first SIGTERM, then SIGINT, then SIGKILL."""
        await self._until_over(self._shutdown.stop)
        self._signal(signal.SIGTERM)
        await self._until_over(self._shutdown.hurry, self._grace_seconds + AFTER_GRACE_SECONDS)
        if self._shutdown.hurry.is_set():
            self._shutdown.hurry.clear()
            self._signal(signal.SIGINT)
            await self._until_over(self._shutdown.hurry, AFTER_GRACE_SECONDS)
        if not self._is_over.is_set():
            _log.warning("killing worker processes that did not stop in time; other workers take over their runs")
            self._signal(signal.SIGKILL)

    async def _until_over(self, order: asyncio.Event, seconds: float | None = None) -> None:
        """Wait until all processes have ended, an order comes, or the time is over."""
        await _first_of(self._is_over.wait(), order.wait(), seconds=seconds)

    def _signal(self, number: signal.Signals) -> None:
        for place in self._places:
            place.signal(number)


class Reloader(Supervisor):
    """Restarts a worker process after each change of the files below a directory.

    It polls the files, which works on every file system and needs no library. If the code cannot be imported, the
    worker process says so, and the reloader waits for a change.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, *, grace_seconds: float, talk: Callable[[str], None]
    ) -> None:
        super().__init__(lambda _: command, 1, grace_seconds=grace_seconds)
        self._directory = directory
        self._talk = talk
        self._is_stale = asyncio.Event()

    async def run(self) -> ExitCode:
        """Supervise and watch the files until SIGTERM or SIGINT."""
        watching = asyncio.create_task(self._watch())
        try:
            return await super().run()
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        known = await asyncio.to_thread(stamps, self._directory)
        while True:
            await asyncio.sleep(POLL_SECONDS)
            found = await asyncio.to_thread(stamps, self._directory)
            if changed := sorted(path for path in known.keys() | found.keys() if known.get(path) != found.get(path)):
                known = found
                more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
                self._talk(f"{changed[0].relative_to(self._directory)}{more} changed; restarting the worker")
                self._is_stale.set()
                self._signal(signal.SIGTERM)

    async def _judge(self, place: Place, code: int, seconds: float) -> None:
        """Restart a process that was stopped for a change. One that ended by itself waits for the next change."""
        del place, seconds
        if not self._is_stale.is_set():
            self._talk(f"the worker ended with exit code {code}; it restarts as soon as a file changes")
            await self._unless_stopped(self._is_stale.wait())
        self._is_stale.clear()


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

    def watch(self, grace_seconds: float) -> None:
        """Stop this process as soon as its supervisor is gone.

        A thread watches the lifeline, so that the process ends even if its event loop hangs.
        """
        threading.Thread(target=self._watch, args=[grace_seconds], name="holdfast-lifeline", daemon=True).start()

    def report_ready(self) -> None:
        """Report to the supervisor that this worker is ready."""
        with suppress(OSError):  # the supervisor is gone; the thread handles it
            self._line.sendall(_READY)

    def _watch(self, grace_seconds: float) -> None:
        with suppress(OSError):
            while self._line.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_seconds + AFTER_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)


async def _first_of(*things: Coroutine[Any, Any, object], seconds: float | None = None) -> None:
    tasks = [asyncio.create_task(thing) for thing in things]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _fate(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def stamps(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return modification time and size of all code and settings files. Hidden and generated files do not count."""
    return {path: (found.st_mtime_ns, found.st_size) for path, found in _files(str(directory))}


def _files(directory: str) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # removed meanwhile, or no permission
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _LEFT_OUT:
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.name.endswith(".py") or entry.name in _NAMES:
                yield Path(entry.path), entry.stat()
        except OSError:
            continue
