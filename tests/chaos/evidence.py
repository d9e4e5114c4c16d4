"""The evidence: all that is known after a storm, as plain values that invariants are checked against."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from holdfast.core.clock import SECOND
from holdfast.core.codec import decode_any
from holdfast.core.model import AuditFact, Entry, EntryKind, Run, Schedule, Wait
from holdfast.core.states import RunState
from tests.chaos.journal import Acceptance
from tests.process.ledger import Deed


class Story(msgspec.Struct, frozen=True):
    """The contents of the store about one run."""

    run: Run
    waits: tuple[Wait, ...] = ()
    entries: tuple[Entry, ...] = ()
    facts: tuple[AuditFact, ...] = ()

    @property
    def result(self) -> Any:
        return None if self.run.result is None else decode_any(self.run.result)

    @property
    def payload(self) -> Any:
        return decode_any(self.run.payload)

    @property
    def claims(self) -> list[AuditFact]:
        return [fact for fact in self.facts if fact.event == "claimed"]

    @property
    def marks(self) -> dict[str, str]:
        """The recorded results of steps that write to the ledger, by location."""
        steps = (EntryKind.STEP, EntryKind.UNDO)
        return {
            entry.location: decode_any(entry.result)
            for entry in sorted(self.entries, key=lambda entry: entry.position)
            if entry.kind in steps and entry.is_settled and entry.result is not None
        }


class Fate(msgspec.Struct, frozen=True):
    """The life of a worker process, in seconds of the machine's clock. `left_at`: when it was asked to stop."""

    pid: int
    worker_id: str
    killed_at: float | None = None
    left_at: float | None = None
    stopped: tuple[tuple[float, float], ...] = ()


class Sighting(msgspec.Struct, frozen=True):
    """An observation of a run during the storm that may not change later.

    It is the end of the run, or, with a `location`, the result recorded there.
    """

    run_id: str
    location: str
    value: str

    @classmethod
    def of_end(cls, run: Run) -> Sighting:
        return cls(run.id, "", f"{run.state.value} at {run.finished_at}: {run.result or run.error}")

    @classmethod
    def of_entry(cls, run_id: str, entry: Entry) -> Sighting:
        value = f"{entry.kind.value} {entry.state.value} at {entry.position}: {entry.result or entry.error}"
        return cls(run_id, entry.location, value)


class Delay(msgspec.Struct, frozen=True):
    """A step was to be retried, but not before a certain time."""

    run_id: str
    location: str
    attempts: int
    until: float


class Remark(msgspec.Struct, frozen=True):
    """A forbidden state, seen during the storm or at its end."""

    invariant: str
    text: str


class Evidence(msgspec.Struct, dict=True):
    """Everything. `checks` is the number of searches for forbidden states."""

    seconds: float
    lease_seconds: float
    accepted: list[Acceptance]
    stories: dict[str, Story]
    deeds: list[Deed]
    fates: list[Fate] = []
    outages: list[tuple[float, float]] = []
    sightings: list[Sighting] = []
    delays: list[Delay] = []
    remarks: list[Remark] = []
    checks: int = 0
    deposits: list[tuple[str, int]] = []
    total: int = 0
    schedule: Schedule | None = None
    blows: dict[str, int] = {}

    @cached_property
    def starts(self) -> list[Acceptance]:
        """Runs that were accepted, each once."""
        found = {one.run_id: one for one in self.accepted if one.what == "start"}
        return list(found.values())

    @cached_property
    def executions(self) -> Mapping[tuple[str, str], list[Deed]]:
        """Started bodies, by run and location, in order."""
        return self._by_place("began")

    @cached_property
    def failures(self) -> Counter[tuple[str, str]]:
        """The number of failures of a body itself, by run and location."""
        return Counter({place: len(deeds) for place, deeds in self._by_place("failed").items()})

    def _by_place(self, what: str) -> Mapping[tuple[str, str], list[Deed]]:
        found: dict[tuple[str, str], list[Deed]] = defaultdict(list)
        for deed in self.deeds:
            if deed.what == what:
                found[deed.run_id, deed.location].append(deed)
        return found

    @cached_property
    def workers(self) -> Mapping[int, str]:
        """The ids of workers by process."""
        return {fate.pid: fate.worker_id for fate in self.fates}

    def token_of(self, deed: Deed) -> int:
        """Return the token under which a body started: that of the last claim of its worker before; 0 if unknown."""
        worker, at = self.workers.get(deed.pid), round(deed.at * SECOND)
        claims = self.stories[deed.run_id].claims
        return max((int(c.data["token"]) for c in claims if c.data["worker"] == worker and c.at <= at), default=0)

    def of_type(self, type: str) -> list[Story]:
        return [story for story in self.stories.values() if story.run.type == type]

    @property
    def ended(self) -> list[Story]:
        return [story for story in self.stories.values() if story.run.state.is_end]

    def waits_for_ever(self, run_id: str) -> bool:
        """True if a run was accepted whose messages are never sent."""
        return any(one.run_id == run_id and _is_waiting(one) for one in self.starts)


def _is_waiting(start: Acceptance) -> bool:
    return start.expect is not None and start.expect.states == (RunState.SUSPENDED.value,)
