"""The display: the progress of a storm, in one changing line on a terminal, or in occasional lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

_TERMINAL_SECONDS = 0.5
_LINE_SECONDS = 5.0


class Display:
    """Writes to standard error, so that standard output contains only the verdict in JSON."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._width = 0

    @property
    def pause_seconds(self) -> float:
        """Interval between two updates."""
        return _TERMINAL_SECONDS if self._is_terminal else _LINE_SECONDS

    def show(self, seconds: float, accepted: int, ended: int, blows: Mapping[str, int], slowest: float) -> None:
        struck = ", ".join(f"{name} {count}" for name, count in sorted(blows.items())) or "no blow yet"
        line = (
            f"{seconds:4.0f} s  {accepted} runs accepted, {ended} ended (with children)  ·  {struck}  ·  "
            f"slowest takeover {slowest:.1f} s"
        )
        if self._is_terminal:
            self._stream.write(f"\r{line.ljust(self._width)}")
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._stream.write(f"{chr(10) if self._width else ''}{line}\n")
        self._width = 0
        self._stream.flush()
