"""The hint watcher: notices writes of other processes to the database file, and posts hints for them.

SQLite's `data_version` is the truth, and the writer reads it regularly. The hint file only makes that faster: a lost
note costs a second.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial

from holdfast.core.hint import Hint
from holdfast.stores.loops import running_loop
from holdfast.stores.sqlite.files import Files
from holdfast.stores.sqlite.hint_file import HintFile
from holdfast.stores.sqlite.jobs import Listener

_SLOW_LOOK_SECONDS = 1.0
_FIRST_LOOK_SECONDS = 0.005
_LAST_LOOK_SECONDS = 0.25
_LOOKS_APART_SECONDS = 0.005

# A request and its answer are only a few notes, so each is read at once. These limits bound the cost of a stream.
_TOUCHES_A_SECOND = 2_000
_TOUCHES_AT_ONCE = 50
_DEAF_SECONDS = 0.005

_IN_MODIFY = 0x2
_EVENT_BYTES = 4_096


class HintWatcher:
    """Watches the other processes on the same file, and holds the listeners of this process."""

    def __init__(self, files: Files) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self._changing = threading.Lock()
        self._files = files
        self._sender = ""
        self._board = HintFile(files, self._sender)
        self._watches: dict[asyncio.AbstractEventLoop, _Watch] = {}
        self._has_touches = False
        self._version = 0
        self._looked_at = 0.0
        self._is_look_due = False
        self._delay = _FIRST_LOOK_SECONDS

    # On the event loop of a listener

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        """Deliver hints to `listener` on the running loop. Returns a function that unsubscribes it."""
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
        """Watch the hint file on the running loop, if this loop has a listener.

        Calls `look` at once, and whenever a process has written without a note.
        """
        loop = asyncio.get_running_loop()
        if loop in self._watches or not any(listening is loop for listening, _ in self.listeners):
            return
        try:
            self._watches[loop] = _Watch(loop, self._files, self._sender, look, partial(self._tell, loop))
        except (OSError, AttributeError, NotImplementedError):  # no inotify on this system, or its limit is reached
            self._has_touches = False
        else:
            self._has_touches = True
        look()

    def _tell(self, loop: asyncio.AbstractEventLoop, hint: Hint) -> None:
        for listening, listener in self.listeners:
            if listening is loop:
                loop.call_soon(listener, hint)  # separately, so that a listener that raises does not stop the next

    def end_watches(self) -> None:
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()

    # For the writer, one thread at a time

    def open(self) -> None:
        # One sender id per store, because two stores in one process hint each other like two processes. Chosen at
        # open, because a store made before a fork may be opened in several processes.
        self._sender = secrets.token_hex(4)
        self._board = HintFile(self._files, self._sender)
        self._board.open()

    def close(self) -> None:
        self._board.close()

    def post(self, hint: Hint) -> None:
        """Post a committed change to other processes. The caller still holds the write lock."""
        self._board.post(hint)

    def patience(self) -> float | None:
        """Return the seconds that the writer may sleep before it looks, or None if there are no listeners."""
        if not self.listeners:
            return None
        since = time.monotonic() - self._looked_at
        if self._is_look_due:
            return max(0.0, _LOOKS_APART_SECONDS - since)
        return max(0.0, (_SLOW_LOOK_SECONDS if self._has_touches else self._delay) - since)

    def is_to_look(self, *, is_told: bool) -> bool:
        """Return True if the writer should look now. A burst of requests leads to few looks."""
        if not self.listeners:
            return False
        self._is_look_due |= is_told
        return self.patience() == 0.0

    def rebase(self, version: int) -> None:
        """Start from the `data_version` of a new connection: the number has meaning only within one connection."""
        self._version = version

    def looked(self) -> None:
        """Note the time of a look, even of one that failed."""
        self._looked_at = time.monotonic()
        self._is_look_due = False

    def have_written(self, version: int) -> bool:
        """Store the `data_version` seen. Returns True if it has changed: another process has written."""
        is_news = version != self._version
        self._version = version
        self._delay = _FIRST_LOOK_SECONDS if is_news else min(_LAST_LOOK_SECONDS, self._delay * 1.5)
        return is_news


class _Watch:
    """Delivers the notes of other processes on an event loop. Linux only: the constructor raises elsewhere."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        files: Files,
        sender: str,
        look: Callable[[], None],
        tell: Callable[[Hint], None],
    ) -> None:
        self._loop = loop
        self._look = look
        self._tell = tell
        self._pause: asyncio.TimerHandle | None = None
        self._allowed_at = 0.0
        self._board = HintFile(files, sender)
        libc = ctypes.CDLL(None, use_errno=True)
        self._file = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            self._board.open()
            _checked(libc.inotify_add_watch(self._file, os.fsencode(files.hint), _IN_MODIFY))
            self._heading = self._board.heading()
            loop.add_reader(self._file, self._on_touch)
        except BaseException:
            self._close()
            raise

    def end(self) -> None:
        """Stop watching. The loop's own thread does it, unless the loop is closed."""
        if self._loop.is_closed():
            self._close()
        elif self._loop is running_loop():
            self._end()
        else:
            self._loop.call_soon_threadsafe(self._end)

    def _on_touch(self) -> None:
        try:
            os.read(self._file, _EVENT_BYTES)
            before, self._heading = self._heading, self._board.heading()
            hint = self._board.news(before.count, self._heading.count)
        except OSError:  # a disk error, which the next write reports to its caller
            return
        if self._heading.mark != before.mark:
            self._look()
        if hint is not None:
            self._tell(hint)
        self._rest_if_crowded()

    def _rest_if_crowded(self) -> None:
        """Stop reading for a moment in a stream of notes: a busy process, even this one, posts thousands."""
        now = self._loop.time()
        self._allowed_at = max(self._allowed_at, now) + 1 / _TOUCHES_A_SECOND
        if self._allowed_at - now > _TOUCHES_AT_ONCE / _TOUCHES_A_SECOND:
            self._loop.remove_reader(self._file)
            self._pause = self._loop.call_later(_DEAF_SECONDS, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._file, self._on_touch)

    def _end(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        else:
            self._loop.remove_reader(self._file)
        self._close()

    def _close(self) -> None:
        os.close(self._file)
        self._board.close()


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
