"""A turn driver: drives one run of a workflow by hand in a plain test. It needs no store, worker or event loop.

    driver = TurnDriver(checkout, order)              # the code runs to its first standstill
    assert driver.steps == ["charge"]                 # these steps would be executed now
    driver.succeed("charge", "paid")                  # the result of a step: the code runs on

The driver treats a run as a worker does, with the same turns and rules. It writes each checkpoint at once, and it
never calls the body of a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.checkpoint import Checkpoint, ContinueAsNew, Hold, LeaseRequest, Next
from holdfast.core.clock import Micros, instant, micros, moment
from holdfast.core.codec import encode_any
from holdfast.core.entries import is_bookkeeping
from holdfast.core.errors import ErrorRecord, HistoryDiverged, InvalidRequest
from holdfast.core.intent import check_topic, described
from holdfast.core.location import check_name
from holdfast.core.model import Arrival, Entry, Intent, Lease, MessageToRun, Run, derived_id
from holdfast.core.states import RunState
from holdfast.runner.definition import Definition
from holdfast.runner.operation import Mark, Operation, Raised, Returned, StepCall
from holdfast.runner.rollback import Undoing
from holdfast.runner.run_turn import Standstill
from holdfast.runner.turn import Turn
from holdfast.worker.claimer import PYTHON

_LEASE = LeaseRequest(worker="turn driver", claim_id="", lease=0, python=PYTHON)


class TurnDriver:
    """Drives one run of a workflow or task by hand, in a plain test without event loop, store or worker.

        driver = TurnDriver(checkout, "order-17")
        assert driver.steps == ["charge"]
        driver.succeed("charge", "paid")

    The code runs until it can go no further; then the test says what happens next. It never calls the body of a step. A
    location names an operation as in the history: `charge`, `charge#2`, `receive:approve`.
    """

    def __init__(self, workflow: object, /, *args: Any, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        type, payload, self._result = described(workflow, args)
        definition = getattr(workflow, "target", workflow)  # a bound call has one
        if not isinstance(definition, Definition):
            raise InvalidRequest(f"{workflow!r} is only the name of a type: pass the workflow or task itself")
        self.checkpoints: list[Checkpoint] = []
        """The checkpoints that a store would have received, with entries, messages, events, children and values."""
        self.children: dict[str, Run] = {}
        """Children that have started and have not ended, by location."""
        self._definition = definition
        self._now: Micros = instant(start)
        self._entries: dict[str, Entry] = {}
        intent = Intent(id=derived_id(f"turn driver {type}", 0), type=type, payload=payload)
        self._run = rules.claimed(rules.new_run(intent, self._now), _LEASE, self._now)
        self._obey(self._begin(self._run))

    # Reading

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return moment(self._now)

    @property
    def state(self) -> RunState:
        """The state of the run. `suspended` if it only waits."""
        is_waiting = self._run.state is RunState.RUNNING and self._standstill.may_suspend
        return RunState.SUSPENDED if is_waiting else self._run.state

    @property
    def steps(self) -> list[str]:
        """The locations of the steps and transactions that a worker would execute now."""
        return [location for location, one in self._operations.items() if isinstance(one, StepCall) and one.is_started]

    @property
    def waits(self) -> list[str]:
        """The locations of what the code waits for: messages, events, children, timers, retries of steps."""
        return [at for at, one in self._operations.items() if at not in self.steps and not isinstance(one, Mark)]

    @property
    def wake_at(self) -> datetime | None:
        """The time of the next timer, timeout or retry, or None."""
        return None if self._standstill.wake_at is None else moment(self._standstill.wake_at)

    @property
    def history(self) -> list[str]:
        """The locations of all operations with a recorded outcome, in order."""
        settled = (entry for entry in self._entries.values() if entry.is_settled and not is_bookkeeping(entry))
        return [entry.location for entry in sorted(settled, key=attrgetter("position"))]

    @property
    def result(self) -> Any:
        """The return value of the workflow. Raises `InvalidRequest` before the workflow has returned."""
        if self._run.state is not RunState.SUCCEEDED:
            raise InvalidRequest(f"there is no result; {self._told()}")
        return self._result.decode(self._run.result or "null", "result of the run")

    @property
    def error(self) -> ErrorRecord | None:
        """The reason why the run failed, was cancelled, rolls back or is blocked."""
        return self._run.error

    def arguments(self, step: str) -> tuple[Any, ...]:
        """Return the arguments with which the body of an open step would be called."""
        return self._call(step).args

    # Acting

    def succeed(self, step: str, value: Any = None) -> None:
        """Let an open step return a value."""
        self._obey(self._turn.feed(self._call(step), Returned(value), self._now))

    def fail(self, step: str, error: BaseException) -> None:
        """Let an attempt at an open step raise an error. Its retry policy decides whether another one follows."""
        self._obey(self._turn.feed(self._call(step), Raised(error), self._now))

    def send(self, name: str, payload: Any = None) -> None:
        """Send the run a message."""
        text = encode_any(payload, f"payload of message {name!r}")
        message = MessageToRun(id=f"m{self._run.arrivals + 1}", name=check_name(name, "message name"), payload=text)
        self._arrive(rules.message_arrival(message, self._run, self._now))

    def emit(self, topic: str, payload: Any = None) -> None:
        """Publish an event."""
        text = encode_any(payload, f"payload of event {topic!r}")
        self._arrive(rules.event_arrival(self._run.arrivals + 1, check_topic(topic), text, self._now))

    def end_child(self, location: str, result: Any = None, *, error: BaseException | None = None) -> None:
        """Let a child succeed with a result, or fail with an error."""
        if location not in self.children:
            raise InvalidRequest(f"there is no open child {location!r}; open children: {_listed(self.children)}")
        text = encode_any(result, f"result of child {location!r}")
        end = {"result": text} if error is None else {"error": ErrorRecord.of(error)}
        state = RunState.SUCCEEDED if error is None else RunState.FAILED
        ended = replace(self.children.pop(location), state=state, **end)
        self._arrive(rules.child_end(ended, 0, self._now))

    def advance(self, length: float | timedelta) -> None:
        """Let seconds or a timedelta pass, and everything happen that is due by then."""
        if (until := self._now + micros(length)) < self._now:
            raise InvalidRequest(f"advance({length!r}): time does not go back")
        while self._run.is_held and (due := self._standstill.wake_at) is not None and due <= until:
            self._now = max(self._now, due)
            self._obey(self._turn.settle(self._now))
        self._now = until

    def replay(self) -> None:
        """Replay the code from its history, as another worker would. Raises `HistoryDiverged` if it does not fit."""
        if self._run.is_held:
            self._write(Hold())  # write facts that had no checkpoint of their own yet, or the replay would lack them
        old, before = self._turn, self._place()
        old.evict()
        run = replace(old.pending.run, token=old.pending.token + 1, arrivals=self._run.arrivals)
        self._standstill = self._begin(run, old.inbox.arrivals)
        if self._run.is_held:
            self._run = run
            self._obey(self._standstill)
        if (after := self._place()) != before:
            raise HistoryDiverged(f"the run stopped at {before}; its replay stopped at {after}")

    # Driving, as a worker does

    def _begin(self, run: Run, arrivals: Iterable[Arrival] = ()) -> Standstill:
        """Begin a turn of the run from its recorded history."""
        lease = Lease(run=run, entries=tuple(self._entries.values()), arrivals=tuple(arrivals))
        definition = self._definition
        if run.rollback is not None:
            definition = undoing = Undoing(definition, lease)
            lease = undoing.lease(lease)
        self._turn = Turn(lease, definition)
        weakref.finalize(self, self._turn.evict)  # else Python would destroy its coroutines while they are pending
        return self._turn.begin(self._now)

    def _obey(self, standstill: Standstill) -> None:
        """Start the steps of a standstill, and write checkpoints until nothing is left to write."""
        while True:
            self._standstill = standstill
            for call in standstill.start:
                self._turn.mark_started(call, self._now)
            if standstill.end is None and not standstill.must_write:
                return
            if isinstance(self._write(standstill.end or Hold()).next, Hold):
                standstill = self._turn.settle(self._now)
                continue
            self._turn.evict()
            if self._run.state is RunState.BLOCKED or self._run.state.is_end:
                return
            self._run = rules.claimed(self._run, _LEASE, self._now)  # the run rolls back, or continues as new
            standstill = self._begin(self._run, self._turn.inbox.arrivals)

    def _write(self, next: Next) -> Checkpoint:
        """Write a checkpoint and apply it as a store does."""
        checkpoint = self._turn.take_checkpoint(next, self._now)
        self._turn.remember(checkpoint)
        self._turn.mark_committed(self._now)
        is_anew = isinstance(checkpoint.next, ContinueAsNew)
        recorded = {entry.location: entry for entry in (checkpoint.entries if is_anew else self._turn.entries)}
        self._entries = self._entries | recorded if self._run.rollback is not None else recorded
        self._run = rules.advanced(self._run, checkpoint, self._now)
        self.checkpoints.append(checkpoint)
        self.children |= {one.parent_location or "": rules.new_run(one, self._now) for one in checkpoint.children}
        for location in [at for at, child in self.children.items() if child.id in checkpoint.cancels]:
            cancelled = rules.cancelled(self.children.pop(location), rules.BY_PARENT.reason, self._now)
            self._deliver(rules.child_end(cancelled, 0, self._now))
        return checkpoint

    def _arrive(self, arrival: Arrival) -> None:
        if not self._run.is_held:
            raise InvalidRequest(f"the run no longer takes arrivals; {self._told()}")
        self._deliver(arrival)
        self._obey(self._turn.settle(self._now))

    def _deliver(self, arrival: Arrival) -> None:
        self._run = replace(self._run, arrivals=self._run.arrivals + 1)
        self._turn.inbox.add([replace(arrival, number=self._run.arrivals)])

    @property
    def _operations(self) -> Mapping[str, Operation]:
        return self._turn._open.by_location  # noqa: SLF001 - a test looks inside

    def _call(self, step: str) -> StepCall:
        call = self._operations.get(step)
        if not isinstance(call, StepCall) or not call.is_started:
            raise InvalidRequest(f"there is no open step {step!r}; {self._told()}")
        return call

    def _told(self) -> str:
        state = self.state.value if self.error is None else f"{self.state.value} ({self.error})"
        return f"open steps: {_listed(self.steps)}; the run is {state} and waits for {_listed(self.waits)}"

    def _place(self) -> str:
        end = self._standstill.end
        if end is None:
            return f"steps {_listed(self.steps)}, waiting for {_listed(self.waits)}"
        why = getattr(end, "error", None) or getattr(end, "result", None)
        return f"{getattr(end, 'state', type(end).__name__)}: {why}"


def _listed(locations: Iterable[str]) -> str:
    return ", ".join(sorted(locations)) or "nothing"
