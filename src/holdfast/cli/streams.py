"""The standard streams, which may be closed, full or gone: what cannot be said is not said, what cannot be told is.

Without talk (stderr) a command does its work all the same. Without a place for its data (stdout) it says so, and ends
with an exit code that is not 0; but not one whose stdout only has what users' code prints.
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
    """What a command had to tell could not be written to stdout."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.FAILED)


def secure_streams() -> None:
    """Have streams that can be used whatever they are connected to. To be called once, before anything is opened."""
    if sys.stdin is None:
        _fill(0)
        sys.stdin = os.fdopen(0, closefd=False)
    # Where others have put their own in place of the standard ones, as tests do, those are good.
    if sys.stdout is sys.__stdout__:
        sys.stdout = _secured(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _secured(sys.stderr, 2)
        _descriptor(sys.stderr).is_needed = False


def spare_stdout() -> None:
    """From now on stdout has only what users' code prints, which may be lost."""
    if isinstance(getattr(getattr(sys.stdout, "buffer", None), "raw", None), _Descriptor):
        _descriptor(sys.stdout).is_needed = False


@contextmanager
def despite(done: str) -> Iterator[None]:
    """Whatever of it cannot be written: say that this was done, so that nobody does it twice."""
    try:
        yield
    except OutputLost as lost:
        raise OutputLost(f"{done}; but {lost}") from lost


class _Descriptor(io.FileIO):
    """Where a stream leads. `is_needed`: somebody is to read what is written there."""

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
            # Once is enough: what is left in buffers would fail again when the process ends.
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
        errors="backslashreplace",  # an old terminal may lack a character; that is no error
        line_buffering=number == 2 or (isinstance(stream, io.TextIOWrapper) and _is_prompt(stream)),
    )


def _is_prompt(stream: io.TextIOWrapper) -> bool:
    return stream.line_buffering or stream.write_through


def _descriptor(stream: TextIO) -> _Descriptor:
    found = stream.buffer.raw  # type: ignore[attr-defined]  # of those that are made here
    assert isinstance(found, _Descriptor)
    return found


def _fill(number: int) -> None:
    """Take a free descriptor, before a file of ours gets it and is written to as if it were a stream.

    For reading only: so whoever writes there learns that it is lost.
    """
    opened = os.open(os.devnull, os.O_RDONLY)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
