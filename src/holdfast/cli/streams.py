"""The standard streams, which may be closed, full or broken.

If stderr fails, a command loses its messages and does its work. If stdout fails, it loses its data: it says so and
ends with an exit code other than 0. Exception: a command whose stdout carries only output of user code.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from holdfast.cli.exits import ExitCode, Refusal

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputLost(Refusal):
    """The output of a command could not be written to stdout."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.FAILED)


def secure_streams() -> None:
    """Replace the standard streams by ones that are safe to use. Call it once, before any file is opened."""
    if sys.stdin is None:
        _fill(0)
        sys.stdin = os.fdopen(0, closefd=False)
    # Streams that were already replaced, as in tests, stay.
    if sys.stdout is sys.__stdout__:
        sys.stdout = _secured(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _secured(sys.stderr, 2)
        _descriptor(sys.stderr).is_needed = False


def spare_stdout() -> None:
    """Declare that stdout carries only output of user code from now on, which may get lost."""
    if isinstance(getattr(getattr(sys.stdout, "buffer", None), "raw", None), _Descriptor):
        _descriptor(sys.stdout).is_needed = False


@contextmanager
def despite(done: str) -> Iterator[None]:
    """If the output gets lost, add to the error what was done, so that the user does not do it twice."""
    try:
        yield
    except OutputLost as lost:
        raise OutputLost(f"{done}; but {lost}") from lost


class _Descriptor(io.FileIO):
    """The file descriptor of a stream. `is_needed` is True if lost output is an error."""

    def __init__(self, number: int, *, is_closed: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.is_needed = True
        self._is_closed = is_closed

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not self.is_needed:
                return memoryview(data).nbytes
            # Report it once: the rest of the buffer would fail again when the process ends.
            self.is_needed = False
            if isinstance(error, BrokenPipeError):
                raise
            why = "stdout is closed" if self._is_closed else error.strerror
            raise OutputLost(f"the output could not be written: {why}") from error


def _secured(stream: TextIO | None, number: int) -> TextIO:
    if stream is None:
        _fill(number)
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(number, is_closed=stream is None)),
        encoding=stream.encoding if stream is not None else "utf-8",
        errors="backslashreplace",  # a character that the encoding lacks is not an error
        line_buffering=number == 2
        or (isinstance(stream, io.TextIOWrapper) and (stream.line_buffering or stream.write_through)),
    )


def _descriptor(stream: TextIO) -> _Descriptor:
    found = stream.buffer.raw  # type: ignore[attr-defined]  # only for streams that `_secured` made
    assert isinstance(found, _Descriptor)
    return found


def _fill(number: int) -> None:
    """Occupy a free descriptor. Otherwise the next opened file would get it, and stream output would go into that file.

    The descriptor is read-only, so that a write fails instead of getting lost silently.
    """
    opened = os.open(os.devnull, os.O_RDONLY)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
