"""The machine: executes a program step by step. It is pure: it changes nothing but its own state.

It runs until every path waits, returns what the program asked for, and accepts one fact after the other. Its whole
state is one JSON document, so a run continues in another process as if it had never left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from holdfast.core.clock import SECOND, Micros, moment
from holdfast.core.errors import ErrorRecord, InvalidRequest, refuse_unknown
from holdfast.flows.durable import Continuation, DurableCalls
from holdfast.flows.faults import ErrorValue, FlowFault, exceeded
from holdfast.flows.handles import Handles
from holdfast.flows.interpreter import execute
from holdfast.flows.limits import DEFAULT_FLOW_LIMITS, FlowLimits
from holdfast.flows.meter import Meter, from_json, to_json
from holdfast.flows.operations import (
    FIRST,
    GROUPS,
    JOIN,
    MAIN_PATH,
    NO_HANDLE,
    NOT_WAITING,
    OPEN,
    PATH,
    RACE,
    UNSET_SLOT,
    ChildPlace,
    Frame,
    Handle,
    OpenOperation,
    Path,
    reopen,
)
from holdfast.flows.program import Program, bind_payload
from holdfast.flows.requests import (
    CallChild,
    Continued,
    FlowDone,
    FlowMark,
    FlowOutcome,
    FlowProgress,
    FlowRaised,
    FlowReturned,
    MapChildren,
    OpenRequest,
    ReceiveBatch,
    ReceiveMessage,
    Request,
    SleepUntil,
    Sliced,
    WaitEvent,
    Waiting,
)
from holdfast.flows.snapshot import decode_state, encode_state

BYTES_PER_INSTRUCTION = 16
"""What one instruction adds to the state at most, apart from what the meter counts."""
BYTES_PER_FACT = 512
"""What one fact adds to the state at most, apart from its value."""
FACT_COST = 50
"""The work of accepting a fact, in instructions."""
COST_PER_PART = 4
"""The work of writing a part of the state into a snapshot, in instructions."""
BYTES_PER_PART = 32
"""What a part adds to the state at least, as the machine counts it."""
PATH_COST = 20
"""Number of instructions that a path of its own costs."""
SHOWN_BRANCHES = 5
"""Number of branches of a group that a sentence names."""


class Machine:
    """One run of a program. Create it with `begin` or `resume`."""

    def __init__(self, program: Program, source: str, limits: FlowLimits, seed: str, now: Micros) -> None:
        self.program = program
        self.limits = limits
        self.meter = Meter(limits)
        self.handles = Handles(limits)
        self.durable = DurableCalls(self.handles, self.meter)
        self.durable.now = now
        self._lines = source.split("\n")
        self._seed = seed
        self._draws = 0
        self._used = 0
        self._unchecked = 0
        self._size = 0
        self._parts = 0
        self._extra_work = 0
        self.left = 0
        """Number of instructions that the slice has left, where the interpreter stopped last."""
        self._outcome: FlowReturned | FlowRaised | Continued | None = None
        self._snapshot: str | None = None

    @classmethod
    def begin(
        cls,
        program: Program,
        source: str,
        payload: str,
        *,
        run_id: str,
        now: Micros,
        limits: FlowLimits = DEFAULT_FLOW_LIMITS,
    ) -> Machine:
        """Return a machine at the beginning of main. Raises `InvalidRequest` if the payload does not fit main."""
        arguments = bind_payload(program, payload, limits)
        # The instant makes generations of one run differ.
        machine = cls(program, source, limits, f"{run_id}:{now}", now)
        machine.handles.paths[MAIN_PATH] = Path(MAIN_PATH, NO_HANDLE, [machine.new_frame(0, arguments)])
        machine.handles.ready.append(MAIN_PATH)
        return machine

    @classmethod
    def resume(
        cls, program: Program, source: str, snapshot: str, *, limits: FlowLimits = DEFAULT_FLOW_LIMITS
    ) -> Machine:
        """Return a machine that continues from a snapshot. Raises `Unreadable` if it is not one of this program."""
        saved, handles = decode_state(snapshot, program, limits)
        machine = cls(program, source, limits, saved.seed, saved.now)
        machine._draws, machine._used = saved.draws, saved.used
        machine._size, machine._parts = len(snapshot.encode()), saved.part_count
        machine.handles = handles
        machine.durable = DurableCalls(handles, machine.meter)
        machine.durable.now = saved.now
        return machine

    # Running

    @property
    def now(self) -> Micros:
        """The time of the last fact."""
        return self.durable.now

    @property
    def instructions(self) -> int:
        """Number of instructions that the run has executed."""
        return self._used

    @property
    def work(self) -> int:
        """The work of this machine in instructions: those of the program, and what facts and snapshots cost."""
        return self._used + self._extra_work

    def run(self, budget: int) -> FlowProgress:
        """Execute at most about `budget` instructions, and say how the slice ended."""
        if self._outcome is None:
            self._snapshot = None
            self._run_paths(budget)
            self._check_budgets()
        return self._outcome or (Sliced() if self.handles.ready else Waiting())

    def _run_paths(self, budget: int) -> None:
        handles = self.handles
        left = min(budget, self.limits.max_instructions - self._used)
        allowed = left
        while handles.ready and left > 0 and self._outcome is None:
            path = handles.paths[handles.ready[0]]
            left = execute(self, path, left)
            if path.wait != NOT_WAITING or not path.frames:
                handles.ready.popleft()
        self._used += allowed - left
        self._unchecked += (allowed - left) * BYTES_PER_INSTRUCTION

    def _check_budgets(self) -> None:
        if self._outcome is not None:
            return
        if self._used >= self.limits.max_instructions:
            maximum = self.limits.max_instructions
            self._stop(exceeded("max_instructions", maximum, "the run executed too many instructions").error)
        else:
            added = self._unchecked + self.meter.created
            parts = self._parts + added // BYTES_PER_PART
            if self._size + added > self.limits.state_bytes or parts > self.limits.state_parts:
                self._check_state()

    def _check_state(self) -> None:
        """Measure the state. That is expensive, so an upper bound of its size decides when it is necessary."""
        self._snapshot = self._encoded()
        if self._size > (maximum := self.limits.state_bytes):
            self._stop(exceeded("state_bytes", maximum, f"the state of the flow has {self._size:,} bytes").error)
        elif self._parts > (maximum := self.limits.state_parts):
            self._stop(exceeded("state_parts", maximum, f"the state of the flow has {self._parts:,} parts").error)

    def _stop(self, error: ErrorValue) -> None:
        """Fail the run at the place where the first path stands, without running its handlers."""
        path = next(iter(self.handles.paths.values()))
        for frame in reversed(path.frames):
            error.places.append(self.place(frame))
        self.fail(error)

    def take_requests(self) -> list[Request]:
        """Return what the program asked for since the last call, in order."""
        taken, self.handles.requests = self.handles.requests, []
        return taken

    def settle(self, handle: int, outcome: FlowOutcome, now: Micros) -> bool:
        """Feed the end of an operation. Returns False if nothing waits for it any more."""
        self._accept(outcome, now)
        return self.handles.settle(handle, outcome)

    def settle_member(self, handle: int, index: int, outcome: FlowOutcome, now: Micros) -> bool:
        """Feed the end of one child of a map. Returns False if nothing waits for it any more."""
        self._accept(outcome, now)
        return self.handles.settle_member(handle, index, outcome)

    def _accept(self, outcome: FlowOutcome, now: Micros) -> None:
        self._snapshot = None
        self._extra_work += FACT_COST
        text = outcome.value if isinstance(outcome, FlowDone) else outcome.message
        self._unchecked += BYTES_PER_FACT + len(text.encode(errors="surrogatepass"))
        self.durable.now = max(self.durable.now, now)

    # Called by the interpreter

    def new_frame(self, function: int, arguments: list[Any]) -> Frame:
        """Return the frame of a call."""
        slots = self.program.functions[function].slots
        return Frame(function, [*arguments, *[UNSET_SLOT] * (len(slots) - len(arguments))])

    def call(self, path: Path, function: int, arguments: list[Any]) -> None:
        """Begin a call in a path."""
        if len(path.frames) >= self.limits.call_depth:
            raise exceeded("call_depth", self.limits.call_depth, "helpers call each other too deeply")
        path.frames.append(self.new_frame(function, arguments))

    def spawn(self, function: int, arguments: list[Any]) -> Handle:
        """Begin an async helper as a path of its own."""
        handles = self.handles
        self.meter.cost += PATH_COST
        if len(handles.paths) >= self.limits.paths:
            raise exceeded("paths", self.limits.paths, "too many async helpers run side by side")
        operation = handles.open(PATH)
        operation.members = [handles.next_path]
        handles.paths[handles.next_path] = Path(
            handles.next_path, operation.number, [self.new_frame(function, arguments)]
        )
        handles.ready.append(handles.next_path)
        handles.next_path += 1
        return Handle(operation.number)

    def draw(self, name: str) -> Any:
        """Return the value of now, uuid or random."""
        if name == "now":
            return self.durable.now / SECOND
        self._draws += 1
        noise = hashlib.sha256(f"{self._seed}:{self._draws}".encode()).digest()
        if name == "random":
            return int.from_bytes(noise[:7], "big") / (1 << 56)
        return str(UUID(bytes=noise[:16], version=4))

    def finish(self, path: Path, value: Any) -> None:
        """End a path that returned."""
        if path.number != MAIN_PATH:
            self.handles.end_path(path, value)
            return
        self._outcome = FlowReturned(to_json(value, "the result", self.meter))

    def continue_as_new(self, continuation: Continuation) -> None:
        """End this generation, if the arguments fit main."""
        names = [parameter.name for parameter in self.program.parameters]
        given = continuation.positional
        if len(given) > len(names):
            raise TypeError(f"main takes {len(names)} arguments, and continue_as_new passes {len(given)}")
        payload = dict(zip(names, given, strict=False))
        if twice := [name for name in continuation.by_name if name in payload]:
            raise TypeError(f"continue_as_new passes {', '.join(twice)} twice")
        text = to_json(payload | continuation.by_name, "the payload of the next generation", self.meter)
        try:
            bind_payload(self.program, text, self.limits)
        except InvalidRequest as error:
            raise TypeError(str(error)) from error
        self._outcome = Continued(text)

    def fail(self, error: ErrorValue) -> None:
        """End the run with an error that main did not catch."""
        self._outcome = FlowRaised(self._record(error))

    def place(self, frame: Frame) -> tuple[str, int, int]:
        """Return function, line and column of the instruction that a frame executed last."""
        function = self.program.functions[frame.function]
        at = 2 * max(frame.pc - 1, 0)
        return function.name, function.positions[at], function.positions[at + 1]

    def _record(self, error: ErrorValue) -> ErrorRecord:
        places = error.places
        _, line, column = places[0] if places else ("main", 1, 1)
        text = self._line(line)
        at = f"line {line}, column {column}: {text}" if text else f"line {line}, column {column}"
        trace = "".join(
            f"  line {line}, column {column}, in {name}\n    {self._line(line)}\n"
            for name, line, column in places[::-1]
        )
        message = f"{error.message} ({at})" if error.message else at
        return ErrorRecord(
            type=error.type,
            message=message[:4_000],
            types=(error.type,),
            traceback=trace + f"{error.type}: {error.message}"[:4_000],
            cause=_cause(error.fields.get("cause")),
        )

    def _line(self, line: int) -> str:
        return self._lines[line - 1].strip()[:200] if 0 < line <= len(self._lines) else ""

    # State

    def snapshot(self) -> str:
        """Return the state as one JSON document. Take the requests before."""
        assert not self.handles.requests, "take the requests first: a snapshot does not have them"
        if self._snapshot is None:
            self._snapshot = self._encoded()
        return self._snapshot

    def _encoded(self) -> str:
        counts = {"draws": self._draws, "used": self._used}
        text, self._parts = encode_state(self.handles, self.program, seed=self._seed, now=self.durable.now, **counts)
        self._size = len(text.encode())
        self._unchecked = self.meter.created = 0
        self._extra_work += self._parts * COST_PER_PART + (self._size >> 9)
        return text

    def open_requests(self) -> list[OpenRequest]:
        """Return the operations of the outside that have not ended."""
        return self.handles.open_requests()

    def reopen(self, places: Iterable[ChildPlace]) -> None:
        """Let the program await children that have failed, because a recovery runs them again."""
        self._snapshot = None
        self.handles.open_count += reopen(self.handles.table, places)

    def raised_failures(self) -> dict[ChildPlace, dict[str, Any]]:
        """Return the failed children behind what awaits have raised since the last snapshot, with their errors."""
        return self.handles.raised.errors

    def snapshot_saved(self) -> None:
        """Note that a checkpoint has the snapshot. A recovery goes back to it."""
        self.handles.raised.clear(self.handles.next_number)

    def known_handles(self) -> list[int]:
        """Return the handles that the program may still use."""
        return list(self.handles.table)

    # Looking inside

    def marks(self) -> list[FlowMark]:
        """Return the places where paths wait, main first."""
        marks = []
        for path in self.handles.paths.values():
            if path.wait == NOT_WAITING or not path.frames:
                continue
            function, line, column = self.place(path.frames[-1])
            sentence = f"waits for {_subject(self, self.handles.table[path.wait])}"
            marks.append(FlowMark(line, column, function, sentence, handle=path.wait, path=path.number))
        return marks

    def variables(self) -> dict[str, Any]:
        """Return the variables of the innermost call of main's path."""
        path = self.handles.paths.get(MAIN_PATH)
        return self.variables_of(path.frames[-1]) if path and path.frames else {}

    def variables_of(self, frame: Frame) -> dict[str, Any]:
        """Return the variables of a call that have a value."""
        names = self.program.functions[frame.function].slots
        return {
            name: value
            for name, value in zip(names, frame.slots, strict=True)
            if value is not UNSET_SLOT and not name.startswith(".")
        }

    def edit_variables(self, values: dict[str, str]) -> None:
        """Set variables of the innermost call of main's path. Values are JSON text."""
        path = self.handles.paths.get(MAIN_PATH)
        if path is None or not path.frames:
            raise InvalidRequest("this flow has ended, so it has no variables")
        frame = path.frames[-1]
        names = self.program.functions[frame.function].slots
        known = [name for name in names if not name.startswith(".")]
        if not values.keys() <= set(known):
            refuse_unknown("variable", values, known, of=self.program.functions[frame.function].name)
        for name, text in values.items():
            try:
                frame.slots[names.index(name)] = from_json(text, f"variable {name}", self.limits)
            except FlowFault as error:
                raise InvalidRequest(str(error)) from error
        self._snapshot = None


def _cause(cause: Any) -> ErrorRecord | None:
    """Return the error behind an error, from the dict that `except … as e` shows."""
    if not isinstance(cause, dict):
        return None
    return ErrorRecord(type=str(cause.get("type", ""))[:200], message=str(cause.get("message", ""))[:4_000])


# Sentences about what paths wait for


def _subject(machine: Machine, operation: OpenOperation) -> str:
    if operation.kind == PATH:
        path = machine.handles.paths.get(operation.members[0])
        return f"{machine.program.functions[path.frames[0].function].name}()" if path and path.frames else "a helper"
    if operation.kind in GROUPS:
        words = {JOIN: "all of", RACE: "one of", FIRST: "the first of"}
        return f"{words[operation.kind]} {_branches(machine, operation)}"
    return _requested(operation)


def _branches(machine: Machine, group: OpenOperation) -> str:
    table = machine.handles.table
    waiting = [place for place, number in enumerate(group.members) if table[number].state == OPEN]
    named = []
    for place in waiting[:SHOWN_BRANCHES]:
        branch = table[group.members[place]]
        is_group = branch.kind in GROUPS
        named.append(f"{group.key(place)} ({'a group' if is_group else _subject(machine, branch)})")
    more = f" and {len(waiting) - SHOWN_BRANCHES} more" if len(waiting) > SHOWN_BRANCHES else ""
    return ", ".join(named) + more


def _requested(operation: OpenOperation) -> str:
    request = operation.request
    match request:
        case CallChild():
            return f"child {request.type}"
        case MapChildren():
            return f"{operation.left} of {request.count} children {request.type}"
        case SleepUntil():
            return f"the time {_instant(request.deadline)}"
        case ReceiveMessage() | ReceiveBatch():
            what = f"message {' or '.join(request.names)}" if request.names else "any message"
            return what + _until(request.deadline)
        case WaitEvent():
            return f"event {request.topic}{_until(request.deadline)}"
        case None:
            return "an operation"


def _until(deadline: Micros | None) -> str:
    return "" if deadline is None else f" until {_instant(deadline)}"


def _instant(at: Micros) -> str:
    try:
        return moment(at).strftime("%Y-%m-%d %H:%M:%S UTC")
    except OverflowError:
        return "the end of time"
