"""Held runs with their versions: what a checkpoint in one trip is checked against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.model import Arrival, Entry, Lease, Run, Wait
from holdfast.stores.held import Held


class HeldVersions(msgspec.Struct):
    """The memory of a held run, besides the run: the versions of its head and history, its inbox and its entries."""

    head: int
    history: int
    inbox: dict[int, Arrival]
    entries: dict[str, Entry]

    def supersedes(self, entries: Iterable[Entry]) -> bool:
        """Return True if all of these entries may be written, by `rules.supersedes`."""
        known = self.entries
        for entry in entries:
            recorded = known.get(entry.location)
            if recorded is not None and not rules.supersedes(entry, recorded):
                return False
        return True


class HeldRuns:
    """The runs that this store has leased. Forgetting one costs only a trip."""

    def __init__(self) -> None:
        self.runs = Held()
        self._versions: dict[str, HeldVersions] = {}

    def lease(self, lease: Lease, waits: tuple[Wait, ...], head: int, history: int) -> None:
        self.runs.keep(replace(lease.run, payload=""), waits)
        inbox = {arrival.number: arrival for arrival in lease.arrivals}
        entries = {entry.location: entry for entry in lease.entries}
        self._versions[lease.run.id] = HeldVersions(head, history, inbox, entries)

    def versions(self, run_id: str) -> HeldVersions | None:
        return self._versions.get(run_id)

    def keep(self, run: Run, waits: Sequence[Wait], versions: HeldVersions) -> None:
        """Remember a run that a checkpoint left held."""
        self.runs.keep(replace(run, payload="") if run.payload else run, tuple(waits))
        self._versions[run.id] = versions

    def forget(self, run_id: str) -> None:
        self.runs.forget(run_id)
        self._versions.pop(run_id, None)

    def clear(self) -> None:
        self.runs = Held()
        self._versions = {}
