"""The watch: hears that other processes have written to the file, and lets them hear that this one has.

The truth is SQLite's `data_version`, which the writer looks at now and then; being told of a touched side file
only makes it look at once. A lost touch costs a second.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.core.hint import Hint
from holdfast.stores.sqlite.files import FILE_MODE, Files
from holdfast.stores.sqlite.jobs import Listener

_SLOW_LOOK_SECONDS = 1.0
_FIRST_LOOK_SECONDS = 0.005
_LAST_LOOK_SECONDS = 0.25
_LOOKS_APART_SECONDS = 0.005

_IN_MODIFY = 0x2
_EVENT_BYTES = 4_096


class Others:
    """What this process knows of the other ones on the same file, and who in here wants to hear of them."""

    def __init__(self, files: Files) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self._changing = threading.Lock()
        self._files = files
        self._hint_file = -1
        self._watches: dict[asyncio.AbstractEventLoop, _Watch] = {}
        self._has_touches = False
        self._version = 0
        self._looked_at = 0.0
        self._is_look_due = False
        self._delay = _FIRST_LOOK_SECONDS

    # On the loop of whoever listens

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        """Have hints delivered on the running loop until the answer is called."""
        loop = asyncio.get_running_loop()
        subscription = (loop, listener)
        with self._changing:
            self.listeners += (subscription,)

        def leave() -> None:
            with self._changing:
                self.listeners = tuple(one for one in self.listeners if one is not subscription)
                is_last = all(listening is not loop for listening, _ in self.listeners)
                watch = self._watches.pop(loop, None) if is_last else None
            if watch is not None:
                watch.end()

        return leave

    def watch(self, look: Callable[[], None]) -> None:
        """Begin to watch for touches on the running loop, if somebody listens there; then `look` is called."""
        loop = asyncio.get_running_loop()
        if loop in self._watches or not any(listening is loop for listening, _ in self.listeners):
            return
        try:
            self._watches[loop] = _Watch(loop, self._files.hint, look)
        except (OSError, AttributeError, NotImplementedError):  # no inotify here, or no more of it
            self._has_touches = False
        else:
            self._has_touches = True
        look()

    def end_watches(self) -> None:
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()

    # In the writer's thread, which alone opens, touches and closes the file

    def open(self) -> None:
        if self._hint_file < 0:
            self._hint_file = os.open(self._files.hint, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def close(self) -> None:
        if self._hint_file >= 0:
            os.close(self._hint_file)
            self._hint_file = -1

    def touch(self) -> None:
        """Tell other processes that there is something to see."""
        try:
            os.pwrite(self._hint_file, b"!", 0)
        except OSError:  # a full disk, for one; the others look once a second anyway
            return

    def patience(self) -> float | None:
        """How long the writer may sleep before it looks around."""
        if not self.listeners:
            return None
        since = time.monotonic() - self._looked_at
        if self._is_look_due:
            return max(0.0, _LOOKS_APART_SECONDS - since)
        return max(0.0, (_SLOW_LOOK_SECONDS if self._has_touches else self._delay) - since)

    def is_to_look(self, *, is_told: bool) -> bool:
        """Whether the time has come; of many touches in a row only some are answered."""
        if not self.listeners:
            return False
        self._is_look_due |= is_told
        return self.patience() == 0.0

    def rebase(self, version: int) -> None:
        """Begin anew with what a fresh connection sees; each counts for itself."""
        self._version = version

    def looked(self) -> None:
        """Take down that a look was taken, whatever came of it."""
        self._looked_at = time.monotonic()
        self._is_look_due = False

    def have_written(self, version: int) -> bool:
        """Take down what was seen; whether it is news."""
        is_news = version != self._version
        self._version = version
        self._delay = _FIRST_LOOK_SECONDS if is_news else min(_LAST_LOOK_SECONDS, self._delay * 1.5)
        return is_news


class _Watch:
    """The touches of a file, told on an event loop. Linux only: elsewhere making one fails."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, told: Callable[[], None]) -> None:
        self._loop = loop
        self._told = told
        self._pause: asyncio.TimerHandle | None = None
        libc = ctypes.CDLL(None, use_errno=True)
        self._file = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            _checked(libc.inotify_add_watch(self._file, os.fsencode(path), _IN_MODIFY))
            loop.add_reader(self._file, self._on_touch)
        except BaseException:
            os.close(self._file)
            raise

    def end(self) -> None:
        """Stop. The loop's own thread does it, unless the loop is gone."""
        if self._loop.is_closed():
            os.close(self._file)
        elif self._loop is _running_loop():
            self._end()
        else:
            self._loop.call_soon_threadsafe(self._end)

    def _on_touch(self) -> None:
        os.read(self._file, _EVENT_BYTES)
        # Deaf for a moment: a busy neighbour, or this process itself, may touch the file thousands of times a second.
        self._loop.remove_reader(self._file)
        self._pause = self._loop.call_later(_LOOKS_APART_SECONDS, self._resume)
        self._told()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._file, self._on_touch)

    def _end(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        else:
            self._loop.remove_reader(self._file)
        os.close(self._file)


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
