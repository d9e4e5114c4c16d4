"""Reloading: restarts one worker process when the code of its application changes. For development only.

The reloader polls the files, which works on every file system and needs no library. Like every supervisor, it never
loads the application. If the code cannot be imported, the worker process says so, and the reloader waits for a change.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from holdfast.cli.exits import ExitCode
from holdfast.cli.supervisor import Place, Supervisor
from holdfast.config.file import OWN_NAME, PROJECT_NAME

POLL_SECONDS = 0.3

_LEFT_OUT = {"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"}
_NAMES = {OWN_NAME, PROJECT_NAME}

Stamps = dict[Path, tuple[int, int]]
"""Modification time and size of each file."""


class Reloader(Supervisor):
    """Restarts a worker process after each change of the files below a directory."""

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
            await self._unless_told(self._is_stale.wait())
        self._is_stale.clear()


def stamps(directory: Path) -> Stamps:
    """Return the stamps of all code and settings files. Hidden and generated files do not count."""
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
