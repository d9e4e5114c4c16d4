"""Exit codes, and the mapping from errors to exit codes."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command, for scripts."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 5
    CONFLICT = 6
    RUN_FAILED = 10
    RUN_CANCELLED = 11
    STILL_GOING = 12
    INTERRUPTED = 130


class Refusal(Exception):
    """A command refuses to continue: a one-sentence message and an exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


def exit_code_of(error: Exception) -> ExitCode | None:
    """Return the exit code of an expected error, or None if the error is a bug."""
    from holdfast.core.errors import error_code_of

    if isinstance(error, Refusal):
        return error.code
    found = error_code_of(error)
    return None if found is None else ExitCode(found.exit)
