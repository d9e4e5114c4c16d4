"""Hints between the processes that share one database file: posted to a file, and watched there.

SQLite's `data_version` is the truth, and the writer polls it regularly. Hints only make that faster: a lost one costs a
second.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import apsw
import msgspec

from holdfast.core.news import Hint, News
from holdfast.stores.loops import running_loop
from holdfast.stores.sqlite.files import Files, open_beside

NOTES = 64
NOTE_BYTES = 512

# The watched file: a mark that any process may change, and the number of notes posted so far.
_HEAD = struct.Struct("<QQ")
# The header of a note: its number, and the checksum and the length of its text.
_NOTE = struct.Struct("<QIH")
_TEXT_BYTES = NOTE_BYTES - _NOTE.size
_MARK_BYTES = 8
_NUMBERS = 1 << 64

_SLOW_POLL_SECONDS = 1.0
_FIRST_POLL_SECONDS = 0.005
_LAST_POLL_SECONDS = 0.25
_POLLS_APART_SECONDS = 0.005

# A request and its answer are only a few notes, so each is read at once. These limits bound the cost of a stream.
_TOUCHES_A_SECOND = 2_000
_TOUCHES_AT_ONCE = 50
_REST_SECONDS = 0.005

_encode = msgspec.json.encode
_decode: Callable[[bytes], Hint | None] = msgspec.json.Decoder(Hint | None).decode

_IN_MODIFY = 0x2
_EVENT_BYTES = 4_096

Listener = tuple[asyncio.AbstractEventLoop, Callable[[Hint], None]]


class FileHints:
    """Watches the other processes on the same file, posts hints for them, and holds the listeners of this process."""

    def __init__(self, files: Files) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self._changing = threading.Lock()
        self._files = files
        self._own = OwnNotes()
        self._file = HintFile(files, self._own)
        self._watches: dict[asyncio.AbstractEventLoop, _Watch] = {}
        self._is_watching = False
        self._version = 0
        self._polled_at = 0.0
        self._is_poll_requested = False
        self._delay = _FIRST_POLL_SECONDS

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

    def watch(self, poll: Callable[[], None]) -> None:
        """Watch the hint file on the running loop, if this loop has a listener.

        Calls `poll` at once, and whenever a process has written without a note.
        """
        loop = asyncio.get_running_loop()
        if loop in self._watches or not any(listening is loop for listening, _ in self.listeners):
            return
        try:
            self._watches[loop] = _Watch(
                loop, self._files.hint, HintFile(self._files, self._own), poll, partial(self._publish, loop)
            )
        except (OSError, AttributeError, NotImplementedError):  # no inotify on this system, or its limit is reached
            self._is_watching = False
        else:
            self._is_watching = True
        poll()

    def _publish(self, loop: asyncio.AbstractEventLoop, hint: Hint) -> None:
        for listening, listener in self.listeners:
            if listening is loop:
                loop.call_soon(listener, hint)  # separately, so that a listener that raises does not stop the next

    def end_watches(self) -> None:
        for watch in self._watches.values():
            watch.end()
        self._watches.clear()

    # In the writer's thread

    def open(self) -> None:
        self._own = OwnNotes()
        self._file = HintFile(self._files, self._own)
        self._file.open()

    def close(self) -> None:
        self._file.close()

    def post(self, hint: Hint) -> None:
        """Post a hint about committed changes to other processes. The caller must hold the write lock."""
        self._file.post(hint)

    def seconds_to_poll(self, *, is_requested: bool = False) -> float | None:
        """Return the seconds until the next poll, or None if there are no listeners.

        After a request it is soon, but not at once after the last one: a burst of requests leads to few polls.
        """
        if not self.listeners:
            return None
        self._is_poll_requested |= is_requested
        apart = _SLOW_POLL_SECONDS if self._is_watching else self._delay
        if self._is_poll_requested:
            apart = _POLLS_APART_SECONDS
        return max(0.0, self._polled_at + apart - time.monotonic())

    def start_from(self, connection: apsw.Connection) -> None:
        """Start from the `data_version` of a new connection: the number has meaning only within one connection."""
        self._version = connection.execute("pragma data_version").get

    def poll(self, connection: apsw.Connection) -> bool:
        """Return True if another process has written since the last poll."""
        self._polled_at = time.monotonic()
        self._is_poll_requested = False
        version: int = connection.execute("pragma data_version").get
        is_news = version != self._version
        self._version = version
        self._delay = _FIRST_POLL_SECONDS if is_news else min(_LAST_POLL_SECONDS, self._delay * 1.5)
        return is_news


class OwnNotes:
    """The numbers of the latest notes that this store has posted itself, so that it need not read them."""

    def __init__(self) -> None:
        self._numbers = [-1] * NOTES

    def add(self, number: int) -> None:
        self._numbers[number % NOTES] = number

    def discard(self, number: int) -> None:
        self._numbers[number % NOTES] = -1

    def __contains__(self, number: int) -> bool:
        return self._numbers[number % NOTES] == number


class Heading(msgspec.Struct, frozen=True):
    """The content of the watched file. `mark` changes after a write without a note."""

    mark: int
    count: int


class HintFile:
    """The latest hints of all processes: a ring buffer of notes, each a hint, or null if the hint did not fit.

    The process that has the write lock posts notes, and every process reads those of the others. A process that is too
    late for a note, or cannot read it, queries the database instead. For one thread only.
    """

    def __init__(self, files: Files, own: OwnNotes) -> None:
        self._files = files
        self._own = own
        self._head = -1
        self._notes = -1

    def open(self) -> None:
        if self._head < 0:
            self._head = open_beside(self._files.hint)
            self._notes = open_beside(self._files.board)

    def close(self) -> None:
        for file in (self._head, self._notes):
            if file >= 0:
                os.close(file)
        self._head = self._notes = -1

    def post(self, hint: Hint) -> None:
        """Post a hint about committed changes. The caller must hold the write lock."""
        # Ignore every error, such as a full disk: the commit stands, and other processes poll once a second anyway.
        with suppress(Exception):
            number = self.heading().count
            text = b"null" if hint.is_elsewhere else _encode(hint)
            if len(text) > _TEXT_BYTES:
                text = b"null"
            note = _NOTE.pack(number, zlib.crc32(text), len(text)) + text
            os.pwrite(self._notes, note, _place(number))
            self._own.add(number)
            try:
                # The watched file comes last, so that a woken process finds the note.
                os.pwrite(self._head, ((number + 1) % _NUMBERS).to_bytes(8, "little"), _MARK_BYTES)
            except BaseException:
                self._own.discard(number)  # another process will use the number
                raise

    def heading(self) -> Heading:
        """Return the current mark and the number of notes posted so far."""
        head = os.pread(self._head, _HEAD.size, 0)
        return Heading(*_HEAD.unpack(head.ljust(_HEAD.size, b"\0")))

    def news(self, since: int, until: int) -> Hint | None:
        """Return the hints of other stores in the notes `since` to `until`, joined, or None if there are none."""
        if not 0 <= until - since <= NOTES:
            return Hint(is_elsewhere=True)
        news: News | None = None
        for number in range(since, until):
            if number in self._own:
                continue
            hint = self._read(number)
            if hint is None:
                return Hint(is_elsewhere=True)
            news = news or News()
            news.add(hint)
        return None if news is None else msgspec.structs.replace(news.hint() or Hint(), is_foreign=True)

    def _read(self, number: int) -> Hint | None:
        """Read a note. Returns None if its hint did not fit, or it was overwritten, or its format is unknown."""
        found = os.pread(self._notes, NOTE_BYTES, _place(number))
        if len(found) < _NOTE.size:
            return None
        found_number, checksum, length = _NOTE.unpack_from(found)
        text = found[_NOTE.size : _NOTE.size + length]
        if found_number != number or zlib.crc32(text) != checksum:
            return None
        try:
            return _decode(text)
        except msgspec.MsgspecError:
            return None


def mark(files: Files) -> None:
    """Make all processes, this one included, query the database. For writers that cannot name the change."""
    with suppress(OSError):  # the processes poll once a second anyway
        file = os.open(files.hint, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(file, secrets.token_bytes(_MARK_BYTES), 0)
        finally:
            os.close(file)


def _place(number: int) -> int:
    return number % NOTES * NOTE_BYTES


class _Watch:
    """Delivers the notes of other processes on an event loop. Linux only: the constructor raises elsewhere."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        notes: HintFile,
        poll: Callable[[], None],
        publish: Callable[[Hint], None],
    ) -> None:
        self._loop = loop
        self._notes = notes
        self._poll = poll
        self._publish = publish
        self._pause: asyncio.TimerHandle | None = None
        self._allowed_at = 0.0
        libc = ctypes.CDLL(None, use_errno=True)
        self._file = _check(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            self._notes.open()
            _check(libc.inotify_add_watch(self._file, os.fsencode(path), _IN_MODIFY))
            self._heading = self._notes.heading()
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
            before, self._heading = self._heading, self._notes.heading()
            hint = self._notes.news(before.count, self._heading.count)
        except OSError:  # a disk error, which the next write reports to its caller
            return
        if self._heading.mark != before.mark:
            self._poll()
        if hint is not None:
            self._publish(hint)
        self._rest_if_crowded()

    def _rest_if_crowded(self) -> None:
        """Stop reading for a moment in a stream of notes: a busy process, even this one, posts thousands."""
        now = self._loop.time()
        self._allowed_at = max(self._allowed_at, now) + 1 / _TOUCHES_A_SECOND
        if self._allowed_at - now > _TOUCHES_AT_ONCE / _TOUCHES_A_SECOND:
            self._loop.remove_reader(self._file)
            self._pause = self._loop.call_later(_REST_SECONDS, self._resume)

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
        self._notes.close()


def _check(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
