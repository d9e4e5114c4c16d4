"""The hint file: the latest hints of the processes that share one database file.

The file is a ring buffer of a few notes. A process that is too late for a note, or cannot read it, looks at the
database instead. Hints only save latency: correctness does not depend on this file.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from holdfast.core.hint import Hint, News
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


class Heading(msgspec.Struct, frozen=True):
    """The content of the watched file. `mark` changes after a write without a note."""

    mark: int
    count: int


class _Note(msgspec.Struct, array_like=True):
    """A note from one store: a hint, or None if the hint did not fit."""

    sender: str
    hint: Hint | None


_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(_Note).decode


class HintFile:
    """The hint file of a store. The process that has the write lock posts notes, and every process reads them.

    Reading skips the notes of `sender` itself. For one thread only.
    """

    def __init__(self, files: Files, sender: str) -> None:
        self._files = files
        self._sender = sender
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
        # Ignore every error, such as a full disk: the commit stands, and other processes look once a second anyway.
        with suppress(Exception):
            number = self.heading().count
            text = _encode(_Note(self._sender, None if hint.is_elsewhere else hint))
            if len(text) > _TEXT_BYTES:
                text = _encode(_Note(self._sender, None))
            note = _NOTE.pack(number, zlib.crc32(text), len(text)) + text
            os.pwrite(self._notes, note, _place(number))
            # The watched file comes last, so that a woken process finds the note.
            os.pwrite(self._head, ((number + 1) % _NUMBERS).to_bytes(8, "little"), _MARK_BYTES)

    def heading(self) -> Heading:
        """Return the current mark and the number of notes posted so far."""
        head = os.pread(self._head, _HEAD.size, 0)
        return Heading(*_HEAD.unpack(head.ljust(_HEAD.size, b"\0")))

    def news(self, since: int, until: int) -> Hint | None:
        """Return the hints of other senders in the notes `since` to `until`, joined, or None if there are none."""
        if not 0 <= until - since <= NOTES:
            return Hint(is_elsewhere=True)
        notes = [self._read(number) for number in range(since, until)]
        strange = [note for note in notes if note is None or note.sender != self._sender]
        return _joined(strange) if strange else None

    def _read(self, number: int) -> _Note | None:
        """Read a note. Returns None if it was overwritten meanwhile, or if its format is unknown."""
        found = os.pread(self._notes, NOTE_BYTES, _place(number))
        if len(found) < _NOTE.size:
            return None
        told, checksum, length = _NOTE.unpack_from(found)
        text = found[_NOTE.size : _NOTE.size + length]
        if told != number or zlib.crc32(text) != checksum:
            return None
        try:
            return _decode(text)
        except msgspec.MsgspecError:
            return None


def mark(files: Files) -> None:
    """Make all processes, this one included, look at the database. For writers that cannot name the change."""
    with suppress(OSError):  # the processes look once a second anyway
        file = os.open(files.hint, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(file, secrets.token_bytes(_MARK_BYTES), 0)
        finally:
            os.close(file)


def _place(number: int) -> int:
    return number % NOTES * NOTE_BYTES


def _joined(notes: Iterable[_Note | None]) -> Hint:
    """Join the hints of several notes into one."""
    news = News()
    for note in notes:
        if note is None or note.hint is None:
            return Hint(is_elsewhere=True)
        news.add(note.hint)
    return msgspec.structs.replace(news.hint() or Hint(), is_foreign=True)
