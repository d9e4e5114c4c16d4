"""Reads: answer the questions of people and the engine about runs. Nothing here writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain, islice
from typing import TypeVar, assert_never, cast

from holdfast.core import limits, questions, rules, transfer
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.model import AuditFact, Backlog, DeadLetter, Entry, Run, Schedule, WorkerRecord
from holdfast.core.questions import (
    AnyQuestion,
    Awaited,
    Details,
    Due,
    ListDeadLetters,
    ListFlows,
    Listing,
    ListSchedules,
    Query,
    SlotUse,
    Stat,
    replies_by_run,
)
from holdfast.core.states import RunState
from holdfast.core.topics import covers
from holdfast.core.transfer import Dump, KeptEvent
from holdfast.stores.memory.state import Published, State
from holdfast.stores.memory.unit_of_work import StateUnit
from holdfast.stores.operations import leases

A = TypeVar("A")


def get(state: State, run_id: str | None, key: str | None) -> Details | None:
    record = state.records.get((state.keys.get(key) if key is not None else run_id) or "")
    return record.details() if record and record.run.deleted_at is None else None


def answer(state: State, question: Stat[A] | Listing[A] | Awaited[A], now: Micros) -> A:
    # The type checker cannot see that each case returns the answer type of its question. The contract tests each one.
    return cast("A", _answer(state, cast("AnyQuestion", question), now))


def _answer(state: State, question: AnyQuestion, now: Micros) -> object:  # noqa: C901, PLR0912 - one line each
    match question:
        case questions.CountRuns():
            return counts(state)
        case questions.CountReady():
            return backlog(state, now)
        case questions.CountLeases():
            return held(state)
        case questions.CountSlots():
            return slots(state, question.type)
        case questions.FindOrphans():
            return orphans(state, question.limit)
        case questions.ListTopics():
            return sorted(state.topics.values(), key=lambda topic: topic.name)
        case questions.ListTypes():
            return sorted(state.types.values(), key=lambda rule: rule.name)
        case questions.ListMessages():
            record = state.records.get(question.run_id)
            return [] if record is None else record.unread_messages()
        case questions.ListDeadLetters():
            return dead_letters(state, question)
        case questions.ListSchedules():
            return schedules(state, question)
        case questions.ListDueSchedules():
            return due_schedules(state, question.limit, question.after, now)
        case questions.ListFlows():
            return list_flows(state, question)
        case questions.EndsOf():
            return ends(state, question.run_ids)
        case questions.VerdictsOn():
            return leases.check(StateUnit(state), question.holdings, now)
        case questions.RepliesTo():
            return replies(state, question.messages)
        case _:
            assert_never(question)


def list_runs(state: State, query: Query) -> list[Details]:
    """Return the runs that a query admits, newest first."""
    matching = [record for record in state.records.values() if query.admits(record.run)]
    newest_first = sorted(matching, key=lambda r: (r.run.created_at, r.run.id), reverse=True)
    return [record.details() for record in newest_first[: query.limit]]


def history(state: State, run_id: str) -> tuple[Entry, ...]:
    record = state.records.get(run_id)
    return record.history() if record else ()


def audit(state: State, run_id: str) -> tuple[AuditFact, ...]:
    record = state.records.get(run_id)
    return tuple(record.audit) if record else ()


def ends(state: State, run_ids: Sequence[str]) -> list[Run]:
    """Return the runs that have ended."""
    known = [state.records[run_id].run for run_id in run_ids if run_id in state.records]
    return [run for run in known if run.state.is_end]


def replies(state: State, asked: Sequence[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Return the replies of runs to messages, by run id and message id."""
    known = [(run_id, id) for run_id, id in asked if run_id in state.records and id in state.records[run_id].replies]
    return replies_by_run((run_id, id, state.records[run_id].replies[id][0]) for run_id, id in known)


def slots(state: State, type: str | None) -> list[SlotUse]:
    """Return how many runs have each slot and how many wait for it, by slot name."""
    used = Counter({name: len(runs) for name, runs in state.slots.items() if runs})
    parked = (limits.parked_at(record.waits) for record in list(state.records.values()))
    waiting = Counter(wait.names[0] for wait in parked if wait is not None)
    names = sorted(name for name in {*used, *waiting} if type is None or limits.is_of(name, type))
    return [SlotUse(name=name, used=used[name], waiting=waiting[name]) for name in names]


def counts(state: State) -> dict[str, dict[RunState, int]]:
    """Return the number of runs of each type in each state."""
    counted: dict[str, dict[RunState, int]] = defaultdict(lambda: defaultdict(int))
    for record in [record for record in state.records.values() if record.run.deleted_at is None]:
        counted[record.run.type][record.run.state] += 1
    return {type: dict(states) for type, states in sorted(counted.items())}


def backlog(state: State, now: Micros) -> list[Backlog]:
    """Return the runs that may be claimed now, by type. A held run counts once its lease has expired."""
    due: dict[str, list[Micros]] = defaultdict(list)
    for record in state.records.values():
        if record.run.ready_at is not None and record.run.ready_at <= now:
            due[record.run.type].append(record.run.ready_at)
    return [Backlog(type=type, count=len(ready), since=min(ready)) for type, ready in sorted(due.items())]


def workers(state: State) -> list[WorkerRecord]:
    return sorted(state.workers.values(), key=lambda worker: worker.id)


def held(state: State) -> dict[str, int]:
    """Return the number of runs that each worker holds."""
    return dict(Counter(record.run.worker for record in state.records.values() if record.run.worker is not None))


def orphans(state: State, limit: int) -> list[str]:
    """Return the ids of live runs that nothing would ever wake."""
    lost = (r.run.id for r in state.records.values() if rules.is_orphan(r.run, has_waits=bool(r.waits)))
    return list(islice(lost, limit))


def dead_letters(state: State, query: ListDeadLetters) -> list[DeadLetter]:
    chosen = (
        letter
        for letter in state.letters.values()
        if letter.number > query.after
        and (query.topic is None or (letter.topic is not None and covers(query.topic, letter.topic)))
    )
    return list(chosen)[: query.limit]


def schedules(state: State, query: ListSchedules) -> list[Schedule]:
    matching = [schedule for schedule in state.schedules.values() if query.admits(schedule)]
    return sorted(matching, key=lambda schedule: schedule.name)[: query.limit]


def due_schedules(state: State, limit: int, after: tuple[Micros, str], now: Micros) -> Due:
    """Return the first schedules that are due, and the instant at which the next one becomes due."""
    slots = ((schedule.next_at, name) for name, schedule in state.schedules.items())
    planned = sorted((at, name) for at, name in slots if at is not None)
    names = [name for at, name in planned if at <= now and (at, name) > after]
    upcoming = (at for at, _ in planned if at > now)
    due = tuple(state.schedules[name] for name in names[:limit])
    return Due(schedules=due, next_at=next(upcoming, None), now=now)


def dump(state: State, run_ids: Sequence[str]) -> list[Dump]:
    """Return the runs that are at rest, with everything that belongs to them."""
    known = [state.records[run_id] for run_id in run_ids if run_id in state.records]
    return [
        Dump(
            run=record.run,
            entries=record.history(),
            inbox=tuple(record.inbox[number] for number in sorted(record.inbox)),
            waits=record.waits,
            values=dict(record.values),
            receipts=dict(record.receipts),
            replies=dict(record.replies),
            audit=tuple(record.audit),
        )
        for record in known
        if transfer.is_at_rest(record.run)
    ]


def kept_events(state: State, after: int, limit: int) -> list[KeptEvent]:
    """Return the events that a run may still receive, with numbers above `after`."""
    kept = [one for one in chain.from_iterable(state.events.values()) if one.state in ("open", "pending")]
    later = sorted((one for one in kept if one.number > after), key=lambda one: one.number)
    return [_kept(one) for one in later[:limit]]


def _kept(published: Published) -> KeptEvent:
    event = published.event
    return KeptEvent(
        number=published.number,
        topic=event.topic,
        id=event.id,
        payload=event.payload,
        at=published.at,
        reached=published.reached,
        is_queued=published.state == "pending",
    )


def list_flows(state: State, query: ListFlows) -> list[FlowDefinition]:
    known = (one for type in sorted(state.flows) for one in state.flows[type])
    matching = [one for one in known if query.admits(one)][: query.limit]
    return matching if query.with_texts else [one.without_texts() for one in matching]
