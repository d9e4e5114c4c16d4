"""The progress of an export or import: on a terminal, one line that is updated several times a second."""

from __future__ import annotations

import sys
import time
from collections import Counter

import click

from holdfast.cli.output import Output

_EVERY_SECONDS = 0.2


class TransferProgress:
    """Counts runs, and shows the counts on stderr if it is a terminal."""

    def __init__(self, out: Output) -> None:
        self._is_heard = not out.settings.is_quiet and out.is_rich_for(sys.stderr)
        self._done: Counter[str] = Counter()
        self._told_at = 0.0

    def __call__(self, what: str, count: int) -> None:
        self._done[what] = count if what == "waiting for" else self._done[what] + count
        now = time.monotonic()
        if self._is_heard and now - self._told_at >= _EVERY_SECONDS:
            self._told_at = now
            told = ", ".join(f"{what} {count:,}" for what, count in self._done.items() if count)
            click.echo(f"\r\x1b[K{told} runs\r", nl=False, err=True)
