"""The ledger: the actual executions of step bodies, one line each, in a file that all processes append to."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast import LeaseLost, step_info


@dataclass(frozen=True)
class Deed:
    """An event of a body: `began`, `ended`, `failed` or `cancelled`. All of one execution have the same `mark`.

    `at` is the time by the clock of the machine, `word` the argument of the body.
    """

    what: str
    run_id: str
    location: str
    attempt: int
    pid: int
    mark: str
    at: float
    word: str

    @classmethod
    def read(cls, line: str) -> Deed:
        what, run_id, location, attempt, pid, mark, at, word = line.split()
        return cls(what, run_id, location, int(attempt), int(pid), mark, float(at), word)


class Ledger:
    """Events in the order in which they happened."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @contextmanager
    def execution(self, word: str = "-") -> Iterator[str]:
        """In a body: record its start and its end. Yields a mark that no other execution has."""
        mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self._write("began", mark, word)
        try:
            yield mark
        except (asyncio.CancelledError, LeaseLost):
            self._write("cancelled", mark, word)
            raise
        except Exception:
            self._write("failed", mark, word)
            raise
        self._write("ended", mark, word)

    def _write(self, what: str, mark: str, word: str) -> None:
        info = step_info()
        line = f"{what} {info.run_id} {info.location} {info.attempt} {os.getpid()} {mark} {time.time():.6f} {word}\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, line.encode())  # one write, so that lines of several processes do not mix
        os.close(file)

    def deeds(self, what: str, run_id: str | None = None, location: str | None = None) -> list[Deed]:
        """Return the events, optionally of one run and one location."""
        return [
            deed
            for deed in self.all()
            if deed.what == what and run_id in (None, deed.run_id) and location in (None, deed.location)
        ]

    def all(self) -> list[Deed]:
        return list(map(Deed.read, self._lines()))

    def executions(self) -> dict[tuple[str, str], list[Deed]]:
        """Return the starts, by run and location."""
        found: dict[tuple[str, str], list[Deed]] = {}
        for deed in self.deeds("began"):
            found.setdefault((deed.run_id, deed.location), []).append(deed)
        return found

    def _lines(self) -> list[str]:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        return text.splitlines()
