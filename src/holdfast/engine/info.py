"""Public records of runs: plain values with datetimes, made from stored rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.audit import BY, REQUEST
from holdfast.core.codec import decode_any
from holdfast.core.entries import ADOPTED_LOCATION, FLOW_LOCATION
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import (
    Arrival,
    AuditFact,
    Entry,
    EntryKind,
    EntryState,
    Run,
    WaitKind,
)
from holdfast.core.questions import Details
from holdfast.core.received import received_in
from holdfast.core.states import RunState
from holdfast.engine.flaws import nearest, record

_FLOW_LOCATION = re.compile(r"@(\d+)/(.+)#\d+(/\d+)?$", re.DOTALL)


class WaitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One wait of a run. `location` is its place in the code, `since` its begin and `deadline` its end.

    `kind` is `time`, `retry`, `message`, `event`, `child`, `children` or `slot` (of a limit). `names` are the names of
    the messages (none: any), the topic, the id of the child, or the limits. `count` is the number of children that have
    to end.
    """

    location: str
    kind: WaitKind
    names: tuple[str, ...]
    since: datetime
    deadline: datetime | None
    count: int = 0

    @property
    def line(self) -> int | None:
        """The line of the program that waits, in a flow."""
        return _line_of(self.location)

    @property
    def name(self) -> str:
        """Its location; in a flow, without the line and the number that make it unique."""
        return _name_of(self.location)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run at the moment when it was read.

    `id`, `type`, `payload`, `key`, `priority` and `tags` are those of its start. `created_at`, `updated_at` and
    `finished_at` are the times of its start, last change and end.
    """

    id: str
    type: str
    state: RunState
    """The state of the run: `info.state == "failed"`, `info.state.is_end`."""
    payload: Any
    result: Any
    """The return value of the workflow. None until then."""
    error: ErrorRecord | None
    """The reason why the run failed, was cancelled, rolls back or is blocked."""
    key: str | None
    priority: int
    tags: dict[str, str]
    attempt: int
    """1, and one more after each crash, block or reopening. `EntryInfo.attempts` counts attempts at a step."""
    generation: int
    """1, and one more after each `ctx.continue_as_new`."""
    parent_id: str | None
    """The run that started it as a child."""
    worker: str | None
    """The id of the worker that holds the run, if one does."""
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    ready_at: datetime | None
    """The time from which a worker may take it: its start or next attempt, or the end of a sleep, timeout or lease."""
    deleted_at: datetime | None
    """The time of its deletion."""
    waits: tuple[WaitInfo, ...]
    """The waits of the run."""
    unreadable: str | None = None
    """The reason why its row in the store cannot be decoded, if so. Those fields have placeholders."""

    @classmethod
    def of(cls, details: Details) -> RunInfo:
        waits = tuple(record(WaitInfo, wait) for wait in details.waits)
        return record(cls, details.run, payload=details.run.input, waits=waits, unreadable=details.unreadable)


class EntryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One operation in the history of a run. `started_at` and `finished_at` are its times.

    `state` is `started`, `retrying`, `done`, `failed` or `timed_out`. `kind` is `step`, `tx`, `timer`, `message`,
    `event`, `child`, `send`, `emit`, `cancel`, `reply`, `loop`, `version`, `removed`, `rollback`, `undo`, `rounds` or
    `snapshot`.
    """

    location: str
    """Its path in the run, such as `charge`, `charge#2` or `ship/~2/label`. `rewind` and `fork` take it.

    In a flow it has the line of the program: `@7/receive:decision#4`. A snapshot is at `@turn/n`.
    """
    kind: EntryKind
    state: EntryState
    attempts: int
    """The number of attempts."""
    result: Any
    """Its result; of a wait, the payload."""
    error: ErrorRecord | None
    """The reason why it failed."""
    started_at: datetime
    finished_at: datetime | None
    retry_at: datetime | None
    """The time of the next attempt."""
    ref: str | None
    """The id of the child, message or run that it refers to."""
    unreadable: str | None = None
    """The reason why its result cannot be decoded, if so. The result is None then."""

    @property
    def line(self) -> int | None:
        """The line of the program that asked for it, in a flow."""
        return _line_of(self.location)

    @property
    def name(self) -> str:
        """Its location; in a flow, without the line and the number that make it unique."""
        return _name_of(self.location)

    @classmethod
    def of(cls, entry: Entry) -> EntryInfo:
        return record(cls, entry, result=lambda: _result(entry))


class AuditInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One event in the life of a run: `event` is what happened, `at` is when, and `data` are the details.

    Events are `created`, `claimed`, `suspended`, `paused`, `recovered` and the like.
    """

    event: str
    at: datetime
    by: str | None = None
    """The name of who asked for it, if the audit knows."""
    data: dict[str, str | int]

    @property
    def is_asked_for(self) -> bool:
        """True if a person or program asked for it, by a control such as `cancel`."""
        return REQUEST in self.data

    @classmethod
    def created(cls, run: Run) -> AuditInfo:
        """Return the first event, made from the run itself."""
        data: dict[str, str | int] = {"type": run.type}
        if run.key is not None:
            data["key"] = run.key
        if by := run.options.by:
            data[BY] = by
        return cls(event="created", at=nearest(run.created_at), by=by or None, data=data)

    @classmethod
    def of(cls, fact: AuditFact) -> AuditInfo:
        by = fact.data.get(BY)
        return record(cls, fact, by=None if by is None else str(by))


class MessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a run has not received yet: its `id`, its `name` and its `payload`.

    `sent_at` is when it reached the run. `unreadable` says why the payload could not be decoded; then it is `None`.
    """

    id: str
    name: str
    payload: Any
    sent_at: datetime
    unreadable: str | None = None

    @classmethod
    def of(cls, arrival: Arrival) -> MessageInfo:
        return record(cls, arrival, id=arrival.ref or "", sent_at=arrival.at)


def _line_of(location: str) -> int | None:
    found = _FLOW_LOCATION.match(location)
    return None if found is None else int(found[1])


def _name_of(location: str) -> str:
    found = _FLOW_LOCATION.match(location)
    return location if found is None else f"{found[2]}{found[3] or ''}"


def entry_infos(entries: Iterable[Entry]) -> list[EntryInfo]:
    """Return a history as users see it. The newest snapshot of a flow is left out: its last kept copy is the same."""
    return [EntryInfo.of(entry) for entry in entries if entry.location not in (FLOW_LOCATION, ADOPTED_LOCATION)]


def _result(entry: Entry) -> Any:
    if entry.result is None or entry.kind is EntryKind.SNAPSHOT:  # the state of a flow is not for users
        return None
    # An entry of these kinds that is not settled has received nothing. It is the entry of the event cursors.
    if entry.kind not in (EntryKind.MESSAGE, EntryKind.EVENT) or not entry.is_settled:
        return decode_any(entry.result)
    # A reception records more than the payload, but users see only the payload. A batch has no `ref`.
    payloads = [decode_any(one.payload) for one in received_in(entry)]
    return payloads if entry.ref is None else payloads[0]
