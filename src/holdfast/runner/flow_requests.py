"""Flow requests: carries out what a flow asks for, as operations to wait for and as commands of the next checkpoint.

Here are also the values that the end of an operation has for a flow.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.codec import Codec
from holdfast.core.entries import Received, received_in
from holdfast.core.errors import ChildFailed, ErrorRecord, WaitTimeout
from holdfast.core.location import name_from
from holdfast.core.model import (
    Entry,
    EntryKind,
    EntryState,
    Event,
    Intent,
    MessageToRun,
    Run,
    WaitKind,
    derived_id,
)
from holdfast.flows.limits import FlowLimits
from holdfast.flows.operations import ChildPlace
from holdfast.flows.requests import (
    AskedRequest,
    CallChild,
    ChildCancels,
    EmitEvent,
    FlowDone,
    FlowFailed,
    FlowOutcome,
    FlowState,
    MapChildren,
    MemberStart,
    OpenRequest,
    ReceiveBatch,
    ReceiveMessage,
    SendMessage,
    SetValue,
    SleepUntil,
    Unsent,
    WaitEvent,
    Withdraw,
    WriteLog,
)
from holdfast.runner.children import child_fields
from holdfast.runner.history import ShortHistory
from holdfast.runner.open_operations import OpenOperations
from holdfast.runner.operation import Batch, ChildEnd, ChildGroup, Operation, Reception, Sleep
from holdfast.runner.pending_checkpoint import PendingCheckpoint

ANY_VALUE: Codec[object] = Codec(object)
"""The codec of every value in a flow: plain JSON."""


def member_place(entry: Entry) -> int:
    """Return the place of a child in its map."""
    return int(entry.location.rpartition("/")[2])


def place_of(location: str) -> ChildPlace:
    """Return the handle in the location of a child, and its index in a map."""
    handle, _, index = location.rpartition("#")[2].partition("/")
    return ChildPlace(int(handle), int(index) if index else None)


def failure_record(error: dict[str, Any]) -> ErrorRecord:
    """Return the error of a child from what the flow knows of it: the reverse of `fed_outcome`."""
    cause = error["cause"]
    # Only the record of a cancellation has no exception classes.
    types = () if error["kind"] == "cancelled" else (cause["type"],)
    return ErrorRecord(type=cause["type"], message=cause["message"], types=types)


def fed_outcome(operation: Operation, entry: Entry) -> FlowOutcome:
    """Return the end of an operation as its flow sees it."""
    if isinstance(operation, Sleep):
        return FlowDone("null")
    if isinstance(operation, Batch):
        return FlowDone(f"[{','.join(_value(operation, one) for one in received_in(entry))}]")
    if isinstance(operation, Reception):
        return _received(operation, entry)
    assert isinstance(operation, (ChildEnd, ChildGroup)), f"a flow does not wait for {operation!r}"
    return _child_end(entry)


def _received(operation: Reception, entry: Entry) -> FlowOutcome:
    try:
        operation.outcome(entry)
    except WaitTimeout as error:
        return FlowFailed("WaitTimeout", str(error), {"location": operation.location})
    (received,) = received_in(entry)
    return FlowDone(_value(operation, received))


def _value(operation: Reception, received: Received) -> str:
    """Return the JSON of a message or event."""
    if not operation.with_name:
        return received.payload
    return f"[{msgspec.json.encode(received.name).decode()},{received.payload}]"


def _child_end(entry: Entry) -> FlowOutcome:
    if entry.state is EntryState.DONE:
        return FlowDone(entry.result or "null")
    try:
        ChildEnd(entry.location, entry.ref or "", ANY_VALUE).outcome(entry)
    except ChildFailed as error:
        cause = {"type": error.cause.type, "message": error.cause.message}
        return FlowFailed("ChildFailed", str(error), {"run_id": error.run_id, "kind": error.kind, "cause": cause})
    raise AssertionError(f"the child at {entry.location} neither succeeded nor failed")


BYTES_PER_UNIT = 4_096
"""A checkpoint carries out requests of `requests_per_checkpoint` units: one for each, and one per that many bytes."""

NO_INDEX = -1
"""The index of a child that is not one of a map."""

_log = logging.getLogger("holdfast.workflow")


class FlowRequests:
    """The requests of one flow run. A checkpoint carries out a limited number, so some wait for the next one."""

    def __init__(
        self,
        run: Run,
        history: ShortHistory,
        open_operations: OpenOperations,
        pending: PendingCheckpoint,
        limits: FlowLimits,
    ) -> None:
        self._limit = limits.requests_per_checkpoint
        self._run = run
        self._history = history
        self._open = open_operations
        self._pending = pending
        self._serial = 0
        self._units = 0
        self._operations: dict[int, Operation] = {}
        self._handles: dict[str, int] = {}
        self._asked: dict[int, AskedRequest] = {}
        self._children: dict[int, str] = {}
        self._adopted: dict[str, str] = {}
        self._maps: dict[int, MapChildren] = {}
        self._unsent: deque[Unsent] = deque()
        self._failed: dict[int, dict[int, int]] = {}

    @property
    def has_unsent(self) -> bool:
        """True if requests wait for the next checkpoint, because this one carries out enough."""
        return bool(self._unsent)

    @property
    def adopted_ids(self) -> frozenset[str]:
        """The children of a failed turn that the program has not asked for again."""
        return frozenset(self._adopted.values())

    def handle_of(self, operation: Operation) -> int:
        """Return the handle of an open operation."""
        return self._handles[operation.location]

    # State

    def restore(self, state: FlowState, requests: Iterable[OpenRequest], put_off: Micros) -> None:
        """Open the operations of a snapshot again. Deadlines move by `put_off` after a rewind."""
        self._children, self._adopted = dict(state.children), dict(state.adopted)
        self._maps = dict(state.maps)
        self._failed = {handle: dict(positions) for handle, positions in state.failed.items()}
        self._asked = {handle: state.asked[handle] for handle in state.failed if handle in state.asked}
        unsent = {one.handle for one in state.unsent if not isinstance(one, (MemberStart, ChildCancels))}
        for request in requests:
            if request.handle not in unsent:
                asked = state.asked[request.handle]
                if put_off and asked.deadline is not None and not asked.is_fixed:
                    asked = replace(asked, deadline=asked.deadline + put_off)
                self._wait(request, asked)
        self._unsent.extend(state.unsent)

    def adopt(self, children: dict[str, str]) -> None:
        """Take children that a failed turn has started, by location, instead of starting them again."""
        self._adopted = {**self._adopted, **children}

    def state_parts(self, known: Iterable[int]) -> dict[str, object]:
        """Return the fields of `FlowState` about requests. `known` are the handles that the program may still use."""
        used = {*known, *(one.child for one in self._unsent if isinstance(one, SendMessage) and one.child)}
        self._children = {handle: child for handle, child in self._children.items() if handle in used}
        self._failed = {handle: positions for handle, positions in self._failed.items() if handle in used}
        for handle in [one for one in self._asked if one not in self._operations and one not in self._failed]:
            del self._asked[handle]
        return {
            "asked": dict(self._asked),
            "failed": self._failed,
            "children": self._children,
            "adopted": self._adopted,
            "unsent": tuple(map(self._with_children, self._unsent)),
            "maps": self._maps,
        }

    def _with_children(self, request: Unsent) -> Unsent:
        """Return a request with all that the next lease needs to carry it out."""
        operation = self._operations.get(request.handle) if isinstance(request, Withdraw) else None
        if operation is None or not (ids := _children_of(operation)):
            return request
        return replace(request, name=_last_name(operation), children=ids)

    # Carrying out

    def add(self, requests: Iterable[Unsent]) -> None:
        """Take requests of the program, and carry out those that fit into the next checkpoint."""
        self._unsent.extend(requests)
        self.carry_out()

    def carry_out(self, *, is_last: bool = False) -> None:
        """Carry out requests until the checkpoint has enough, or all of them if it is the last one."""
        while self._unsent and (is_last or self._units < self._limit):
            self._perform(self._unsent.popleft())

    def reset_units(self) -> None:
        """Note that a checkpoint was taken. The next one carries out more."""
        self._units = 0

    def forget(self, operation: Operation) -> None:
        """Forget an operation that has ended."""
        handle = self._handles.pop(operation.location)
        del self._operations[handle]
        if handle not in self._failed:
            del self._asked[handle]

    # Failures

    def note_failure(self, operation: Operation, entry: Entry) -> None:
        """Remember where the failure of a child is recorded, because the program may await it later."""
        index = member_place(entry) if isinstance(operation, ChildGroup) else NO_INDEX
        self._failed.setdefault(self.handle_of(operation), {})[index] = entry.position

    def failure(self, place: ChildPlace, error: dict[str, Any]) -> Entry | None:
        """Return the entry of a failure that the program has raised; None if the program itself cancelled the child.

        The history may not have it any more.
        """
        handle, index = place
        asked, position = (
            self._asked.get(handle),
            self._failed.get(handle, {}).get(NO_INDEX if index is None else index),
        )
        if asked is None or position is None:
            return None
        location = asked.location if index is None else f"{asked.location}/{index}"
        failed = replace(_started(location, error["run_id"], asked), state=EntryState.FAILED, position=position)
        return replace(failed, error=failure_record(error), finished_at=self._history.stamp)

    def _perform(self, request: Unsent) -> None:
        match request:
            case CallChild():
                self._call(request)
            case MapChildren():
                self._map(request)
            case MemberStart():
                self._start_member(request)
            case SleepUntil() | ReceiveMessage() | ReceiveBatch() | WaitEvent():
                name = _name_of(request)
                self._wait(request, self._asked_now(request, name, request.deadline))
            case SendMessage():
                self._send(request)
            case EmitEvent() | SetValue() | WriteLog():
                self._publish(request)
            case Withdraw():
                self._withdraw(request)
            case ChildCancels():
                self._cancel(request.ids)
            case _:
                assert_never(request)

    def _count(self, text: str) -> None:
        self._units += 1 + len(text) // BYTES_PER_UNIT

    def _asked_now(
        self, request: OpenRequest, name: str, deadline: Micros | None = None, origin: str = ""
    ) -> AskedRequest:
        location = f"@{request.line}/{name}#{request.handle}"
        is_fixed = isinstance(request, SleepUntil) and request.is_fixed
        return AskedRequest(location, self._history.since, self._history.stamp, deadline, origin, is_fixed)

    def _key(self, location: str) -> str:
        return f"{self._run.id}:{self._run.generation}:{location}"

    # Waiting

    def _wait(self, request: OpenRequest, asked: AskedRequest) -> None:
        """Open the operation of a request that was asked for then or now."""
        operation = self._operation(request, asked)
        self._serial += 1
        operation.serial = self._serial
        operation.asked_at = asked.at
        operation.since = asked.since
        self._operations[request.handle] = operation
        self._handles[operation.location] = request.handle
        self._asked[request.handle] = asked
        self._open.add(operation, is_recorded=False)

    def _operation(self, request: OpenRequest, asked: AskedRequest) -> Operation:
        location, deadline = asked.location, asked.deadline
        match request:
            case CallChild():
                end = ChildEnd(location, self._children[request.handle], ANY_VALUE)
                end.started_at = asked.at
                return end
            case MapChildren():
                return self._group(request, asked)
            case SleepUntil():
                return Sleep(location, deadline=deadline or 0)
            case ReceiveMessage():
                return Reception(
                    location,
                    WaitKind.MESSAGE,
                    request.names,
                    ANY_VALUE,
                    deadline=deadline,
                    with_name=request.with_name,
                )
            case ReceiveBatch():
                return Batch(
                    location, request.names, ANY_VALUE, request.count, deadline=deadline, with_name=request.with_name
                )
            case WaitEvent():
                return Reception(location, WaitKind.EVENT, (request.topic,), ANY_VALUE, deadline=deadline)

    # Children

    def _child_id(self, asked: AskedRequest, location: str, index: int | None = None) -> str:
        return self._adopted.get(location) or derived_id(asked.origin, asked.at, index)

    def _origin(self, request: CallChild | MapChildren, name: str) -> str:
        # The token makes the ids unique to this lease. Otherwise a flow would find a child that a rewind cancelled.
        return f"{self._key(f'@{request.line}/{name}#{request.handle}')}:{self._pending.token}"

    def _call(self, request: CallChild) -> None:
        name = request.options.get("name") or request.type
        asked = self._asked_now(request, name, origin=self._origin(request, name))
        child_id = self._children[request.handle] = self._child_id(asked, asked.location)
        is_awaited = request.is_awaited_kind == "call"
        intent = self._intent(request, child_id, asked.location, request.payload, "cancel" if is_awaited else "abandon")
        self._start(intent, asked, is_awaited=is_awaited)
        self._wait(request, asked)

    def _map(self, request: MapChildren) -> None:
        """Queue the children of a map, and wait for all of them.

        Children without a slot come first. It may take several checkpoints to start all, and a child that ends in
        between can pass its slot only to a child that exists.
        """
        name = request.options.get("name") or request.type
        asked = self._asked_now(request, name, origin=self._origin(request, name))
        self._maps[request.handle] = replace(request, payloads=())
        limit = request.limit or request.count
        order = [*range(limit, request.count), *range(min(limit, request.count))]
        members = [MemberStart(request.handle, at, request.payloads[at], is_parked=at >= limit) for at in order]
        self._unsent.extendleft(reversed(members))
        self._wait(request, asked)

    def _group(self, request: MapChildren, asked: AskedRequest) -> ChildGroup:
        ended = set(request.settled)
        locations = {at: f"{asked.location}/{at}" for at in range(request.count) if at not in ended}
        members = [(self._child_id(asked, location, at), location) for at, location in locations.items()]
        group = ChildGroup(asked.location, f"{self._run.id}/{asked.location}", members)
        group.started = {child_id: _started(location, child_id, asked) for child_id, location in members}
        return group

    def _start_member(self, member: MemberStart) -> None:
        request, asked = self._maps[member.handle], self._asked.get(member.handle)
        if asked is not None:  # else the map was cancelled meanwhile
            location = f"{asked.location}/{member.index}"
            child_id = self._child_id(asked, location, member.index)
            intent = self._intent(request, child_id, location, member.payload, "cancel", map_limit=request.limit)
            self._start(replace(intent, is_parked=member.is_parked), asked, is_awaited=True)
        if not any(isinstance(one, MemberStart) and one.handle == member.handle for one in self._unsent):
            del self._maps[member.handle]

    def _intent(
        self,
        request: CallChild | MapChildren,
        child_id: str,
        location: str,
        payload: str,
        on_close: str,
        *,
        map_limit: int | None = None,
    ) -> Intent:
        fields = {"on_close": on_close} | child_fields(request.options, None, map_limit)
        return Intent(
            id=child_id,
            type=request.type,
            payload=payload,
            parent_id=self._run.id,
            parent_location=location,
            **fields,
        )

    def _start(self, intent: Intent, asked: AskedRequest, *, is_awaited: bool) -> None:
        """Let the next checkpoint start a child, unless a recovery kept it."""
        location = intent.parent_location or ""
        if self._adopted.pop(location, None) is not None:
            if intent.parent_location != asked.location:
                self._adopted[location] = intent.id  # the ids of a map's children are derived again after a resume
            return
        self._count(intent.payload)
        self._pending.request(replace(_started(location, intent.id, asked), attempts=int(is_awaited)))
        self._pending.command(intent)

    def _withdraw(self, request: Withdraw) -> None:
        """Stop waiting for an operation. A child is cancelled."""
        operation, name, ids = self._operations.pop(request.handle, None), request.name, request.children
        if operation is not None:
            name, ids = _last_name(operation), _children_of(operation)
            del self._asked[request.handle], self._handles[operation.location]
            self._failed.pop(request.handle, None)
            self._open.remove(operation)
        if ids:
            self._effect(request.line, "cancel", name, EntryKind.CANCEL, ref=ids[0] if len(ids) == 1 else None)
            self._cancel(ids)

    def _cancel(self, ids: tuple[str, ...]) -> None:
        """Let this checkpoint cancel children, and the next ones those for which it has no room."""
        room = max(1, self._limit - self._units)
        self._units += min(room, len(ids))
        self._pending.command(cancels=ids[:room])
        if later := ids[room:]:
            self._unsent.appendleft(ChildCancels(later))

    # Effects

    def _send(self, request: SendMessage) -> None:
        target = request.run_id or self._children.get(request.child or 0)
        if target is None:
            return  # the child has ended, and nothing but this handle knew it
        self._count(request.payload)
        location = self._effect(request.line, "send", request.name, EntryKind.SEND, ref=target)
        message = MessageToRun(id=self._key(location), run_id=target, name=request.name, payload=request.payload)
        self._pending.command(message)

    def _publish(self, request: EmitEvent | SetValue | WriteLog) -> None:
        match request:
            case EmitEvent():
                self._count(request.payload)
                location = self._effect(request.line, "emit", request.topic, EntryKind.EMIT)
                event = Event(id=self._key(location), topic=request.topic, payload=request.payload)
                self._pending.command(event)
            case SetValue():
                self._count(request.value)
                self._pending.publish(request.name, request.value)
            case WriteLog():
                self._count(request.text)
                extra = {"run_id": self._run.id, "type": self._run.type, "location": f"@{request.line}"}
                _log.info("%s", request.text, extra=extra)

    def _effect(self, line: int, verb: str, subject: str, kind: EntryKind, ref: str | None = None) -> str:
        """Record an effect that has no answer. Return its location."""
        since, stamp, position = self._history.since, self._history.stamp, self._history.next_position()
        location = f"@{line}/{name_from(verb, subject)}#{position}"
        self._pending.request(
            Entry(
                location=location,
                kind=kind,
                state=EntryState.DONE,
                position=position,
                started_at=stamp,
                finished_at=stamp,
                ref=ref,
                since=since,
            )
        )
        return location


def _last_name(operation: Operation) -> str:
    return operation.location.rpartition("/")[2].partition("#")[0]


def _children_of(operation: Operation) -> tuple[str, ...]:
    """Return the children that an operation waits for."""
    if isinstance(operation, ChildEnd):
        return (operation.child_id,)
    return tuple(operation.open_ids) if isinstance(operation, ChildGroup) else ()


def _started(location: str, child_id: str, asked: AskedRequest) -> Entry:
    """Return the entry of a child that has been started."""
    return Entry(
        location=location,
        kind=EntryKind.CHILD,
        state=EntryState.STARTED,
        attempts=1,
        started_at=asked.at,
        ref=child_id,
        since=asked.since,
    )


def _name_of(request: SleepUntil | ReceiveMessage | ReceiveBatch | WaitEvent) -> str:
    match request:
        case SleepUntil():
            return "sleep"
        case ReceiveMessage() | ReceiveBatch():
            return name_from("receive", "|".join(request.names)) if request.names else "receive"
        case WaitEvent():
            return name_from("event", request.topic)
