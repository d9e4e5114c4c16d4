"""`explain`: one sentence that says why a run is not moving, and how far it has got in its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, assert_never

from holdfast.core import audit, limits
from holdfast.core.clock import FIRST_INSTANT, LAST_INSTANT, SECOND, Micros, moment
from holdfast.core.entries import UNDO_PREFIX, undone
from holdfast.core.errors import HistoryDiverged, Unreadable, WorkflowViolation, nearest
from holdfast.core.flow_definitions import FLOW_RUNTIME
from holdfast.core.model import (
    AuditFact,
    Backlog,
    Entry,
    EntryState,
    Run,
    TypeRule,
    Value,
    Wait,
    WaitKind,
    WorkerRecord,
)
from holdfast.core.ports import Reader
from holdfast.core.questions import CountReady, CountSlots, Details, ListMessages, ListTypes, SlotUse
from holdfast.core.rules import MAX_RUN_LOCATION, MAX_SUSPEND_LOCATION
from holdfast.core.states import RunState
from holdfast.engine.flow_view import FlowView, flow_view
from holdfast.engine.info import RunInfo

_LIMITS = {
    MAX_RUN_LOCATION: "it is cancelled (max_run)",
    MAX_SUSPEND_LOCATION: "unless something arrives before, it is cancelled (max_suspend)",
}
"""Text for each time limit of a run, by its location among the waits. The time follows it."""


async def explanation(store: Reader, details: Details, facts: Sequence[AuditFact], now: Micros) -> str:
    """Read everything that is needed, and return why the run is not moving. `facts` is its audit."""
    if (unreadable := RunInfo.of(details).unreadable) is not None:
        return f"Its row in the store cannot be read ({unreadable}); repair it there, then recover it if it is blocked."
    type = details.run.type
    rules = {rule.name: rule for rule in await store.catalog(ListTypes())}
    rule = rules.get(type) or TypeRule(name=type)
    slots = await store.stats(CountSlots(type=type)) if limits.parked_at(details.waits) is not None else ()
    flow = await _flow(store, details.run, rule)
    step = _step(await progress_of(store, details, rule.plan))
    why = step + explain(details, await store.workers(), facts, now, rule, slots, flow)
    return why + await _misspelt_message(store, details) + _misspelt_type(details.run, rules)


async def _misspelt_message(store: Reader, details: Details) -> str:
    """Return a sentence about an unread message whose name is similar to one that the run waits for."""
    awaited = {name for wait in details.waits if wait.kind is WaitKind.MESSAGE for name in wait.names}
    if not awaited:
        return ""
    for message in await store.catalog(ListMessages(run_id=details.run.id)):
        if message.name not in awaited and (meant := nearest(message.name, awaited)) is not None:
            return f" An unread message has the similar name {message.name!r}; was {meant!r} meant?"
    return ""


def _misspelt_type(run: Run, rules: Mapping[str, TypeRule]) -> str:
    """Return a sentence about a known type with a similar name, for a run whose type no worker has ever offered."""
    if run.state is not RunState.PENDING or run.type in rules or (meant := nearest(run.type, rules)) is None:
        return ""
    return f" A type with a similar name is known; was {meant!r} meant?"


async def _flow(store: Reader, run: Run, rule: TypeRule) -> FlowView | None:
    """Return the view of a flow that waits; None if the run is not one, or if another reason explains its state."""
    if rule.runtime != FLOW_RUNTIME or run.state is not RunState.SUSPENDED:
        return None
    try:
        return await flow_view(store, run, await store.history(run.id))
    except Unreadable:
        return None  # its waits say enough


def explain(  # noqa: PLR0917 - it needs all of them
    details: Details,
    workers: Sequence[WorkerRecord],
    facts: Sequence[AuditFact],
    now: Micros,
    rule: TypeRule,
    slots: Sequence[SlotUse] = (),
    flow: FlowView | None = None,
) -> str:
    """Return why the run is not moving, in one sentence. `facts` is its audit, `slots` are those of its type.

    `flow` is the view of a flow that waits.
    """
    run = details.run
    if run.state.is_end:
        return _end(run)
    if run.is_held:
        return _held(run, workers, facts, now)
    if run.state is RunState.PAUSED:
        return _paused(run, facts)
    undoing = _rolling_back(run)
    if (parked := limits.parked_at(details.waits)) is not None:
        return undoing + _parked(run, parked, rule, slots)
    if run.state is RunState.BLOCKED:
        return _blocked(run)
    if run.ready_at is not None and run.ready_at <= now:
        return undoing + _ready(run, workers, facts, rule, now)
    if run.state is RunState.PENDING and run.ready_at is not None:
        return f"Starts at {_at(run.ready_at)}."
    waiting = _in_order(details.waits) if flow is None else [*_lines(flow, details.waits), *_limits(details.waits)]
    return f"{undoing}Waiting: {'; '.join(waiting) or 'it has no registered wait'}."


def _step(progress: PlanProgress | None) -> str:
    """Return how far a pipeline has got, as a sentence before the explanation."""
    if progress is None or progress.cursor is None:
        return ""
    return f"At step {progress.number} of {len(progress.steps)} ({progress.cursor}). "


def _end(run: Run) -> str:
    why = f": {run.error}" if run.error is not None and run.state is RunState.FAILED else ""
    if run.state is RunState.CANCELLED and run.error is not None and run.error.message:
        why = f": {run.error.message}"
    return f"Ended as {run.state.value} at {_at(run.finished_at)}{why}."


def _held(run: Run, workers: Sequence[WorkerRecord], facts: Sequence[AuditFact], now: Micros) -> str:
    holder = next((worker for worker in workers if worker.id == run.worker), None)
    name = run.worker if holder is None else holder.name
    is_killed = holder is not None and holder.is_dead
    late = ""
    if is_killed or (run.ready_at or now) < now:
        can = (
            "so another worker takes over"
            if is_handled(run.type, alive(workers, now))
            else ("and no other worker is running that could take over; start one with `holdfast worker MODULE:ATTR`")
        )
        late = f", {'which was killed' if is_killed else 'whose lease has expired'}, {can}"
    pausing = f"; it pauses as soon as no step of it executes{_asked(facts)}" if run.is_pausing else ""
    return f"{_rolling_back(run)}Running on worker {name}{late}{pausing}."


def _paused(run: Run, facts: Sequence[AuditFact]) -> str:
    since = next((fact.at for fact in reversed(facts) if fact.event == "paused"), run.updated_at)
    undoing = " while it was rolling back" if run.rollback is not None else ""
    return f"Paused since {_at(since)}{undoing}{_asked(facts)}; `holdfast resume {run.id}` lets it continue."


def _asked(facts: Sequence[AuditFact]) -> str:
    """Return who paused a run, and the reason."""
    asked = next((f for f in reversed(facts) if f.event in ("paused", "pausing") and audit.REQUEST in f.data), None)
    if asked is None:
        return ""
    by, reason = asked.data.get(audit.BY), asked.data.get("reason")
    return (f" by {by}" if by else "") + (f" ({reason})" if reason else "")


def _blocked(run: Run) -> str:
    undoing = " while it was rolling back" if run.rollback is not None else ""
    again = f"it is tried again at {_at(run.ready_at)}"
    if run.ready_at is None:
        again = f"it is not tried again by itself: once the cause is fixed, `holdfast recover {run.id}` continues it"
    # Other errors than those of holdfast are mistakes in the workflow's code (`block_on`).
    mismatches = (WorkflowViolation, HistoryDiverged)
    is_slip = run.error is not None and not any(map(run.error.matches, mismatches))
    give_up = f"; `holdfast recover --fail {run.id}` lets it fail" if is_slip and run.ready_at is not None else ""
    return f"Blocked{undoing} by {run.error}; {again}{give_up}."


def _rolling_back(run: Run) -> str:
    if run.rollback is None:
        return ""
    return f"Rolling back because of {run.error}, to end as {run.rollback.value}. "


def _parked(run: Run, wait: Wait, rule: TypeRule, slots: Sequence[SlotUse]) -> str:
    """Return the limit that a run waits for, and how much of it is used."""
    (queue,) = wait.names
    use = {slot.name: slot for slot in slots}
    waiting = use[queue].waiting if queue in use else 1
    line = f"{waiting} runs wait" if waiting > 1 else "no other run waits"
    off = f"; the type is disabled, `holdfast types enable {rule.name}` enables it" * (not rule.is_enabled)
    if queue == limits.rate_slot(rule.name) and rule.rate is not None:
        limit = f"the rate of {rule.name}, {rule.rate.count:,} in {rule.rate.period / SECOND:g} s"
        when = f"may begin at {_at(run.ready_at)}" if run.ready_at is not None else "begins in its turn"
        return f"Parked by a limit since {_at(wait.since)}: {limit}; it {when}, {line}{off}."
    counts = limits.slots_of(rule, run)
    of_key = queue.removeprefix(f"{limits.type_slot(rule.name)} ")
    limit = f"per_key {of_key}" if of_key != queue else "concurrency"
    used = use[queue].used if queue in use else 0
    of = f"{used:,} of {counts[queue]:,} in use" if queue in counts else f"{used:,} in use"
    return f"Parked by a limit since {_at(wait.since)}: {limit} of {rule.name}, {of}, {line}{off}."


def _ready(run: Run, workers: Sequence[WorkerRecord], facts: Sequence[AuditFact], rule: TypeRule, now: Micros) -> str:
    living = alive(workers, now)
    since = f"Ready since {_at(run.ready_at)}{_by_hand(facts)}"
    if not rule.is_enabled:
        return f"{since}, but type {run.type} is disabled; `holdfast types enable {run.type}` enables it."
    if is_handled(run.type, living):
        return f"{since}; waits for a worker with a free slot."
    if not living:
        heard = _last_heard(run, workers)
        return f"{since}, but no worker is running{heard}; start one with `holdfast worker MODULE:ATTR`."
    is_flow = rule.runtime == FLOW_RUNTIME
    verb = "execute" if is_flow else "handle"
    running = (
        f"the one worker that is running does not {verb}"
        if len(living) == 1
        else (f"none of the {len(living)} workers that are running {verb}s")
    )
    what = f"the flow {run.type}" if is_flow else f"type {run.type}"
    advice = "start one without --no-flows whose --types include it" if is_flow else "start one that does"
    return f"{since}, but {running} {what}{_last_heard(run, workers)}; {advice}."


def _last_heard(run: Run, workers: Sequence[WorkerRecord]) -> str:
    """Return the last worker of this type, which died or hangs. The store forgets workers that stop normally."""
    able = [worker for worker in workers if run.type in worker.types]
    if not able:
        return ""
    last = max(able, key=lambda worker: worker.heartbeat_at)
    return f" (the last worker for this type, {last.name}, sent its last heartbeat at {_at(last.heartbeat_at)})"


def _by_hand(facts: Sequence[AuditFact]) -> str:
    """Return the control that made a run ready, if one did."""
    last = facts[-1] if facts else None
    if last is None or audit.REQUEST not in last.data:
        return ""
    at = f" to {last.data['location']}" if last.event == "rewound" else ""
    of = f" from run {last.data['of']}" if last.event == "forked" and "of" in last.data else ""
    return f", {last.event}{at}{of}" if last.event in ("resumed", "woken", "rewound", "recovered") or of else ""


def _in_order(waits: Sequence[Wait]) -> list[str]:
    """Return the waits as texts, the time limits last."""
    return [*(_wait(wait) for wait in waits if wait.location not in _LIMITS), *_limits(waits)]


def _limits(waits: Sequence[Wait]) -> list[str]:
    return [f"{_LIMITS[wait.location]} at {_at(wait.deadline)}" for wait in waits if wait.location in _LIMITS]


def _lines(flow: FlowView, waits: Sequence[Wait]) -> list[str]:
    """Return what the paths of a flow wait for, each with its line of the program."""
    if flow.unreadable is not None:
        registered = [_wait(wait) for wait in waits if wait.location not in _LIMITS]
        return [*registered, f"its lines are unknown, because {flow.unreadable}"]
    return [
        f"{wait.sentence.removeprefix('waits ')} (line {wait.line}: `{flow.line(wait.line)}`)" for wait in flow.waits
    ]


def _wait(wait: Wait) -> str:
    names = " or ".join(wait.names)
    match wait.kind:
        case WaitKind.TIME:
            is_endless = wait.deadline is not None and wait.deadline > LAST_INSTANT
            return f"sleeping {'forever' if is_endless else f'until {_at(wait.deadline)}'} ({wait.location})"
        case WaitKind.RETRY:
            step = wait.location.removeprefix(UNDO_PREFIX)
            what = f"step {step}" if step == wait.location else f"the undo of step {step}"
            return f"{what} is tried again at {_at(wait.deadline)}"
        case WaitKind.MESSAGE:
            what = f"message {names}" if names else "any message"
        case WaitKind.EVENT:
            what = f"event {names}"
        case WaitKind.CHILD:
            what = f"child run {names}"
        case WaitKind.CHILDREN:
            what = f"{wait.count} child runs"
        case WaitKind.SLOT:
            what = "one of its siblings to end, because of the limit of the map,"
        case _:
            assert_never(wait.kind)
    until = f", at most until {_at(wait.deadline)}" if wait.deadline is not None else ""
    return f"for {what} since {_at(wait.since)}{until} ({wait.location})"


def _at(when: Micros | None) -> str:
    if when is None or not FIRST_INSTANT <= when <= LAST_INSTANT:
        return "an unknown time"
    return moment(when).strftime("%Y-%m-%d %H:%M:%S UTC")


DEAD_AFTER: Micros = 60 * SECOND
"""Age of the last heartbeat after which a worker counts as dead. Heartbeats are much more frequent."""


def is_alive(worker: WorkerRecord, now: Micros) -> bool:
    """True if a worker had a recent heartbeat and is not known to be dead."""
    return not worker.is_dead and worker.heartbeat_at > now - DEAD_AFTER


def alive(workers: Iterable[WorkerRecord], now: Micros) -> list[WorkerRecord]:
    """Return the workers that are alive."""
    return [worker for worker in workers if is_alive(worker, now)]


def is_handled(type: str, workers: Iterable[WorkerRecord]) -> bool:
    """True if one of the workers executes runs of a type."""
    return any(type in worker.types for worker in workers)


async def unhandled(store: Reader, now: Micros) -> Sequence[Backlog]:
    """Return the types with due runs that no living worker executes. The cost does not grow with other runs."""
    living = alive(await store.workers(), now)
    return [due for due in await store.stats(CountReady()) if not is_handled(due.type, living)]


async def plan_progress(store: Reader, details: Details) -> PlanProgress | None:
    """Return how far a run has got in the plan of its type. None if its type is not a pipeline."""
    rules = await store.catalog(ListTypes())
    plan = next((rule.plan for rule in rules if rule.name == details.run.type), ())
    return await progress_of(store, details, plan)


async def progress_of(store: Reader, details: Details, plan: Sequence[str]) -> PlanProgress | None:
    """Return how far a run has got in a plan. None if the plan is empty or the history cannot be read."""
    if not plan:
        return None
    try:
        entries = await store.history(details.run.id)
    except Unreadable:
        return None
    return progress(plan, details.run, entries, details.waits)


# The plan of a pipeline

PlannedState = Literal["done", "undone", "current", "failed", "cancelled", "to_come", "skipped"]
"""State of a step. After the end of a run, steps that it did not reach are `skipped`."""


class PlannedStep(Value, frozen=True, kw_only=True):
    """A step of a plan and its state in one run."""

    name: str
    state: PlannedState


class PlanProgress(Value, frozen=True, kw_only=True):
    """The steps of a plan with their states.

    `cursor` is the step that the run executes, waits in or failed at; None after the last. A step that takes `ctx` has
    no entry of its own. It is done when a later step has one.
    """

    cursor: str | None
    steps: tuple[PlannedStep, ...]

    @property
    def number(self) -> int | None:
        """The place of the cursor, counted from 1."""
        return None if self.cursor is None else 1 + [step.name for step in self.steps].index(self.cursor)


def progress(plan: Sequence[str], run: Run, entries: Sequence[Entry], waits: Sequence[Wait]) -> PlanProgress:
    """Return how far a run has got in its plan."""
    passed = _passed(plan, run, entries, waits)
    was_undone = {_step_of(location) for location in undone(entries)}
    steps = []
    for number, name in enumerate(plan):
        state: PlannedState = "undone" if name in was_undone else "done"
        if number >= passed:
            state = _at_cursor(run) if number == passed else ("skipped" if run.state.is_end else "to_come")
        steps.append(PlannedStep(name=name, state=state))
    return PlanProgress(cursor=plan[passed] if passed < len(plan) else None, steps=tuple(steps))


def _passed(plan: Sequence[str], run: Run, entries: Sequence[Entry], waits: Sequence[Wait]) -> int:
    """Return the number of steps that are done: those before the last one that has begun, and that one if it ended."""
    if run.state is RunState.SUCCEEDED:
        return len(plan)
    begun = {_step_of(location) for location in (*(e.location for e in entries), *(w.location for w in waits))}
    last = max((number for number, name in enumerate(plan) if name in begun), default=None)
    if last is None:
        return 0
    is_done = any(entry.location == plan[last] and entry.state is EntryState.DONE for entry in entries)
    return last + 1 if is_done else last


def _at_cursor(run: Run) -> PlannedState:
    end = run.rollback or run.state
    if end is RunState.FAILED:
        return "failed"
    return "cancelled" if end is RunState.CANCELLED else "current"


def _step_of(location: str) -> str:
    return location.partition("/")[0]
