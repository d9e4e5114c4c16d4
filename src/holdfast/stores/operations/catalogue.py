"""The catalogue: the parts of a unit of work that keep things other than runs, by name or number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.model import DeadLetter, Schedule, WorkerRecord
from holdfast.core.transfer import Origin


class DeadLetterRows(Protocol):
    """Dead letters, by number."""

    def add(self, letter: DeadLetter) -> None:
        """Keep a dead letter under the next number."""
        ...

    def get(self, number: int) -> DeadLetter | None: ...

    def remove(self, number: int) -> bool:
        """Delete a dead letter. Return True if it existed."""
        ...


class ScheduleRows(Protocol):
    """Schedules, by name."""

    def get(self, name: str) -> Schedule | None: ...

    def put(self, schedule: Schedule) -> None: ...

    def remove(self, name: str) -> bool:
        """Delete a schedule. Return True if it existed."""
        ...


class FlowRows(Protocol):
    """Registrations of flows, by type and time."""

    def of(self, type: str) -> Sequence[FlowDefinition]:
        """Return the registrations of a type in order of time. Their texts may be missing."""
        ...

    def whole(self, definition: FlowDefinition) -> FlowDefinition:
        """Return a registration with its texts."""
        ...

    def put(self, definition: FlowDefinition) -> None:
        """Add a registration with its texts, or replace the `used_at` of one that is there."""
        ...

    def remove(self, definition: FlowDefinition) -> None: ...

    def types(self) -> Sequence[str]:
        """Return the types that have more than one registration, so that old ones may be removed. Only for pruning."""
        ...

    def oldest_run(self, type: str) -> Micros | None:
        """Return when the oldest run of a type that is still stored was created. Only for pruning."""
        ...


class WorkerRows(Protocol):
    """Live workers, by id."""

    def beat(self, worker: WorkerRecord, now: Micros) -> None:
        """Record the heartbeat of a worker."""
        ...

    def remove(self, worker_id: str) -> None: ...


class Origins(Protocol):
    """Progress of imports from other stores, by the id of the export."""

    def get(self, export_id: str) -> Origin | None: ...

    def put(self, export_id: str, origin: Origin) -> None: ...
