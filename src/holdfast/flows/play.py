"""Playing a flow on a virtual clock, without a store: stubs answer its calls, and time jumps to the next event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import msgspec

from holdfast.core.clock import Micros, moment
from holdfast.core.errors import ErrorRecord, InvalidRequest
from holdfast.flows.limits import DEFAULT_FLOW_LIMITS, FlowLimits
from holdfast.flows.machine import Machine
from holdfast.flows.program import Program
from holdfast.flows.requests import (
    CallChild,
    Continued,
    EmitEvent,
    FlowDone,
    FlowFailed,
    FlowOutcome,
    FlowProgress,
    FlowRaised,
    FlowReturned,
    MapChildren,
    OpenRequest,
    ReceiveBatch,
    ReceiveMessage,
    Request,
    SendMessage,
    SetValue,
    SleepUntil,
    Sliced,
    WaitEvent,
    Waiting,
    Withdraw,
    WriteLog,
)

_json = msgspec.json.encode


class StubError(msgspec.Struct, frozen=True):
    """An error that a stub gives instead of a value."""

    type: str = "ChildFailed"
    message: str = "the stub failed"
    fields: dict[str, Any] = {}


class StubSequence(msgspec.Struct, frozen=True):
    """Values or errors that a stub gives in order. The last one repeats."""

    answers: tuple[Any, ...]


class PlayedArrival(msgspec.Struct, frozen=True):
    """A message or event that arrives at an instant. Without one, it arrives when the flow waits for it."""

    name: str
    payload: Any = None
    at: Micros | None = None
    is_event: bool = False


class Played(msgspec.Struct, frozen=True):
    """How a played flow ended. A flow that waits for something that never comes has no outcome."""

    outcome: FlowReturned | FlowRaised | Continued | None
    requests: tuple[Request, ...]
    """Everything that the flow asked for."""
    trace: tuple[str, ...]
    """What happened, line by line."""
    waits: tuple[str, ...]
    """What it waits for, if it has no outcome."""
    now: Micros
    instructions: int

    @property
    def error(self) -> ErrorRecord | None:
        """The error of the flow."""
        return self.outcome.error if isinstance(self.outcome, FlowRaised) else None


def play(
    program: Program,
    source: str,
    payload: str,
    stubs: Mapping[str, Any],
    *,
    arrivals: Sequence[PlayedArrival] = (),
    now: Micros = 0,
    run_id: str = "play",
    limits: FlowLimits = DEFAULT_FLOW_LIMITS,
    max_facts: int = 10_000,
) -> Played:
    """Play a flow until it ends or nothing can wake it.

    `stubs` has an answer for each type: a JSON value, a `StubError`, or a `StubSequence`. Raises `InvalidRequest` for a
    payload that does not fit main, and for a call of a type without a stub.
    """
    machine = Machine.begin(program, source, payload, run_id=run_id, now=now, limits=limits)
    return _Stage(machine, source, stubs, list(arrivals)).play(max_facts)


class _Stage:
    """The world around one played flow."""

    def __init__(self, machine: Machine, source: str, stubs: Mapping[str, Any], arrivals: list[PlayedArrival]) -> None:
        self._machine = machine
        self._lines = source.split("\n")
        self._stubs = stubs
        self._arrivals = arrivals
        self._used: dict[str, int] = {}
        self._requests: list[Request] = []
        self._trace: list[str] = []

    def play(self, max_facts: int) -> Played:
        outcome: FlowReturned | FlowRaised | Continued | None = None
        for _ in range(max_facts):
            progress = self._run()
            if not isinstance(progress, Waiting | Sliced):
                outcome = progress
                self._note_outcome(progress)
                break
            if not self._feed():
                break
        return Played(
            outcome=outcome,
            requests=tuple(self._requests),
            trace=tuple(self._trace),
            waits=() if outcome else tuple(mark.sentence for mark in self._machine.marks()),
            now=self._machine.now,
            instructions=self._machine.instructions,
        )

    def _run(self) -> FlowProgress:
        machine = self._machine
        while isinstance(progress := machine.run(machine.limits.instructions_per_slice), Sliced):
            self._take()
        self._take()
        return progress

    def _take(self) -> None:
        for request in self._machine.take_requests():
            self._requests.append(request)
            self._note(request.line, _request_words(request))

    def _note(self, line: int, what: str) -> None:
        text = self._lines[line - 1].strip() if 0 < line <= len(self._lines) else ""
        self._trace.append(f"{_instant(self._machine.now)} line {line}: {what}    | {text}")

    def _note_outcome(self, outcome: FlowReturned | FlowRaised | Continued) -> None:
        match outcome:
            case FlowReturned(result):
                what = f"returned {result}"
            case FlowRaised(error):
                what = f"raised {error}"
            case Continued(payload):
                what = f"continued as new with {payload}"
            case _:
                assert_never(outcome)
        self._trace.append(f"{_instant(self._machine.now)} {what}")

    # Facts

    def _feed(self) -> bool:
        """Feed the next fact: a stub's answer at once, else what comes first in time. False if nothing comes."""
        waiting = self._machine.open_requests()
        for request in waiting:
            if isinstance(request, CallChild | MapChildren):
                self._answer(request)
                return True
        for request in waiting:
            for arrival in self._arrivals:
                if (arrival.at is None or arrival.at <= self._machine.now) and _fits(request, arrival):
                    return self._deliver(request, arrival, self._machine.now)
        return self._advance(waiting)

    def _answer(self, request: CallChild | MapChildren) -> None:
        if isinstance(request, CallChild):
            outcome = self._stub(request.type)
            self._note(request.line, f"{request.type} {_outcome_words(outcome)}")
            self._machine.settle(request.handle, outcome, self._machine.now)
            return
        for index in range(request.count):
            outcome = self._stub(request.type)
            self._note(request.line, f"{request.type} {index} {_outcome_words(outcome)}")
            self._machine.settle_member(request.handle, index, outcome, self._machine.now)

    def _stub(self, type: str) -> FlowOutcome:
        if type not in self._stubs:
            raise InvalidRequest(f"the flow calls {type!r}, which has no stub; add --stub {type}=JSON")
        answer = self._stubs[type]
        if isinstance(answer, StubSequence):
            place = self._used.get(type, 0)
            self._used[type] = place + 1
            answer = answer.answers[min(place, len(answer.answers) - 1)] if answer.answers else None
        if isinstance(answer, StubError):
            # The fields that the error of a child has in a store, so that a flow can read them here, too.
            cause = {"type": "Error", "message": answer.message}
            return FlowFailed(
                answer.type, answer.message, {"run_id": "", "kind": "failed", "cause": cause, **answer.fields}
            )
        return FlowDone(_json(answer).decode())

    def _deliver(self, request: OpenRequest, arrival: PlayedArrival, now: Micros) -> bool:
        self._arrivals.remove(arrival)
        value: Any = arrival.payload
        if isinstance(request, ReceiveMessage | ReceiveBatch) and request.with_name:
            value = [arrival.name, value]
        if isinstance(request, ReceiveBatch):
            value = [value]
        kind = "event" if arrival.is_event else "message"
        self._machine.settle(request.handle, FlowDone(_json(value).decode()), now)
        self._note(request.line, f"{kind} {arrival.name} arrived: {_json(arrival.payload).decode()}")
        return True

    def _advance(self, waiting: list[OpenRequest]) -> bool:
        """Let time jump to the next deadline or arrival."""
        due: list[tuple[Micros, int, OpenRequest, PlayedArrival | None]] = []
        for request in waiting:
            deadline = getattr(request, "deadline", None)
            if deadline is not None:
                due.append((deadline, request.handle, request, None))
            fitting = [one for one in self._arrivals if _fits(request, one)]
            due += [(one.at, request.handle, request, one) for one in fitting if one.at is not None]
        if not due:
            return False
        at, _, request, arrival = min(due, key=lambda one: one[:2])
        if arrival is not None:
            return self._deliver(request, arrival, at)
        self._expire(request, at)
        return True

    def _expire(self, request: OpenRequest, at: Micros) -> None:
        match request:
            case SleepUntil():
                outcome: FlowOutcome = FlowDone("null")
                what = "the time has come"
            case ReceiveBatch():
                outcome, what = FlowDone("[]"), "no message came in time"
            case _:
                outcome, what = FlowFailed("WaitTimeout", "nothing came in time"), "nothing came in time"
        self._machine.settle(request.handle, outcome, at)
        self._note(request.line, what)


def _fits(request: OpenRequest, arrival: PlayedArrival) -> bool:
    if isinstance(request, WaitEvent):
        return arrival.is_event and arrival.name == request.topic
    if isinstance(request, ReceiveMessage | ReceiveBatch):
        return not arrival.is_event and (not request.names or arrival.name in request.names)
    return False


def _request_words(request: Request) -> str:
    match request:
        case CallChild(type=kind, payload=payload):
            return f"{request.is_awaited_kind} {kind} {payload}"
        case MapChildren(type=kind, count=count):
            return f"map {kind}, {count} children"
        case SleepUntil(deadline=deadline):
            return f"sleep until {_instant(deadline)}"
        case SendMessage(name=word, payload=payload):
            return f"send {word} {payload}"
        case ReceiveMessage() | ReceiveBatch():
            return f"receive {' or '.join(request.names) or 'any message'}{_until(request.deadline)}"
        case WaitEvent():
            return f"wait for event {request.topic}{_until(request.deadline)}"
        case _:
            return _effect(request)


def _effect(request: EmitEvent | SetValue | WriteLog | Withdraw) -> str:
    match request:
        case EmitEvent():
            return f"emit {request.topic} {request.payload}"
        case SetValue():
            return f"set_value {request.name} {request.value}"
        case WriteLog():
            return f"log {request.text}"
        case Withdraw():
            return "stop waiting for what is no longer needed"


def _until(deadline: Micros | None) -> str:
    return "" if deadline is None else f" until {_instant(deadline)}"


def _outcome_words(outcome: FlowOutcome) -> str:
    return f"returned {outcome.value}" if isinstance(outcome, FlowDone) else f"failed: {outcome.message}"


def _instant(at: Micros) -> str:
    try:
        return moment(at).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
    except OverflowError:
        return str(at)
