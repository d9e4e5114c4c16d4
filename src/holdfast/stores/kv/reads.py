"""Reads: answer the questions of people and the engine. Nothing here writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.structs import asdict

from holdfast.core import audit as audit_rules
from holdfast.core import limits, rules, transfer
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.intent import matches_type
from holdfast.core.model import (
    Arrival,
    AuditFact,
    Backlog,
    DeadLetter,
    Entry,
    Run,
    Schedule,
    Topic,
    TypeRule,
    WaitKind,
    WorkerRecord,
)
from holdfast.core.ports import Finding
from holdfast.core.questions import (
    Details,
    Due,
    ListDeadLetters,
    ListFlows,
    ListSchedules,
    Query,
    SlotUse,
    replies_by_run,
)
from holdfast.core.states import RunState
from holdfast.core.topics import covers
from holdfast.core.transfer import Dump, KeptEvent
from holdfast.core.wire import PLACEHOLDERS, joined, readable, reason_of
from holdfast.stores.kv import names
from holdfast.stores.kv.catalogue import (
    VALUE,
    AgedEvent,
    decode_event,
    decode_letter,
    decode_schedule,
    decode_topic,
    flows_of,
    texts_read,
    with_texts,
    worker_of,
)
from holdfast.stores.kv.driver import EVERYTHING, AllFields, Driver, Fields, Log, Lowest, Partition, Range, Read, Size
from holdfast.stores.kv.histories import arrivals_of, decode_reply, facts_of, history_of
from holdfast.stores.kv.limits import RULE, USED, decode_rule
from holdfast.stores.kv.names import DELETED, run_of
from holdfast.stores.kv.runs import FAILURES, HEAD, waits_of
from holdfast.stores.operations.limits import finding_of

CHUNK = 500
"""Number of runs that one load reads, so that no load keeps a server from others for long."""

NO_FIELDS: Mapping[str, bytes] = {}


async def answers(driver: Driver, reads: Sequence[Read]) -> list[Any]:
    """Return the answers to reads, in several loads if there are many."""
    found: list[Any] = []
    for begin in range(0, len(reads), CHUNK):
        found += (await driver.load(reads[begin : begin + CHUNK])).answers
    return found


async def partitions(driver: Driver, reads: Sequence[Fields | AllFields]) -> list[Partition]:
    return await answers(driver, reads)


async def members_of(driver: Driver, index: str, low: str = "", limit: int = EVERYTHING) -> list[str]:
    """Return the members of an index: all of them, or a page."""
    return cast("list[str]", (await driver.load([Range(index, low, limit=limit)])).answers[0])


# Runs


async def get(driver: Driver, run_id: str | None, key: str | None) -> Details | None:
    run_ids = await _with_key(driver, key) if key is not None else [run_id] if run_id is not None else []
    details = await details_of(driver, run_ids)
    return next((one for one in details if one.run.deleted_at is None), None)


async def _with_key(driver: Driver, key: str) -> list[str]:
    """Return the id of the run that has a key, if there is one."""
    (found,) = await partitions(driver, [Fields(names.key(key), ("id",))])
    return [run_id.decode() for run_id in found.fields.values()]


async def details_of(driver: Driver, run_ids: Sequence[str]) -> list[Details]:
    """Return everything that people see of runs, in the given order, without those that do not exist."""
    reads: list[Fields | AllFields] = []
    for run_id in run_ids:
        reads += [AllFields(names.head(run_id)), AllFields(names.values(run_id))]
    found = await partitions(driver, reads)
    pairs = zip(run_ids, found[::2], found[1::2], strict=True)
    return [_details(run_id, head.fields, values.fields) for run_id, head, values in pairs if head.fields]


def _details(run_id: str, head: Mapping[str, bytes], values: Mapping[str, bytes]) -> Details:
    flaws: list[str | None] = []
    try:
        run = run_of(head)
    except FAILURES as error:
        run, why = marked_run(run_id, head)
        flaws.append(why or reason_of(error))
    try:
        waits = waits_of(head.get(names.WAITS))
    except FAILURES as error:
        waits = ()
        flaws.append(f"waits: {reason_of(error)}")
    texts = {name: value.decode(errors="replace") for name, value in values.items()}
    return Details(run=run, waits=waits, values=texts, unreadable=joined(flaws))


def marked_run(run_id: str, head: Mapping[str, bytes]) -> tuple[Run, str]:
    """Return a run with placeholders for those of its parts that cannot be read, and why they cannot."""
    values, flaws = dict(PLACEHOLDERS), []
    for what, field, decode in (("body", names.BODY, names.decode_body), ("state", names.MOVING, names.decode_moving)):
        try:
            values |= asdict(decode(head[field])) if field in head else {}
        except FAILURES as error:
            flaws.append(f"{what}: {reason_of(error)}")
    ready = head.get(names.READY)
    if ready is not None:
        values["ready_at"] = int(ready) if ready.isdigit() else None
    payload = head.get(names.PAYLOAD, b"").decode(errors="replace")
    return Run(**values | {"id": run_id, "payload": payload}), joined(flaws) or ""


async def history(driver: Driver, run_id: str) -> tuple[Entry, ...]:
    (found,) = await partitions(driver, [AllFields(names.history(run_id))])
    with readable(f"the history of run {run_id}", FAILURES):
        return history_of(found.fields)


async def audit(driver: Driver, run_id: str) -> tuple[AuditFact, ...]:
    loaded = await driver.load([Log(names.audit(run_id))])
    with readable(f"the audit of run {run_id}", FAILURES):
        return audit_rules.kept(facts_of(run_id, cast("list[bytes]", loaded.answers[0])))


async def messages(driver: Driver, run_id: str) -> list[Arrival]:
    (found,) = await partitions(driver, [AllFields(names.inbox(run_id))])
    with readable(f"the inbox of run {run_id}", FAILURES):
        return [arrival for arrival in arrivals_of(found.fields) if arrival.kind is WaitKind.MESSAGE]


async def ends(driver: Driver, run_ids: Sequence[str]) -> list[Run]:
    """Return the runs that have ended. The moving part of an ended run is gone, so only ended runs are read whole."""
    moving = await partitions(driver, [Fields(names.head(run_id), (names.MOVING,)) for run_id in run_ids])
    ended = [run_id for run_id, head in zip(run_ids, moving, strict=True) if head.version and not head.fields]
    if not ended:
        return []
    found = await partitions(driver, [AllFields(names.head(run_id)) for run_id in ended])
    runs = [
        _details(run_id, head.fields, NO_FIELDS).run for run_id, head in zip(ended, found, strict=True) if head.fields
    ]
    return [run for run in runs if run.state.is_end]


async def replies(driver: Driver, asked: Sequence[tuple[str, str]]) -> dict[str, dict[str, str]]:
    reads = [Fields(names.replies(run_id), (message_id,)) for run_id, message_id in asked]
    found = await partitions(driver, reads)
    return replies_by_run(
        (run_id, message_id, decode_reply(one.fields[message_id])[0])
        for (run_id, message_id), one in zip(asked, found, strict=True)
        if message_id in one.fields
    )


async def workers(driver: Driver) -> list[WorkerRecord]:
    (found,) = await partitions(driver, [AllFields(names.WORKERS)])
    return sorted(map(worker_of, found.fields.values()), key=lambda worker: worker.id)


# Numbers


async def counts(driver: Driver) -> dict[str, dict[RunState, int]]:
    pairs = sorted(name.split(":", 1)[::-1] for name in await members_of(driver, names.STATES))
    known = [(type, state) for type, state in pairs if state != DELETED]
    found = await answers(driver, [Size(names.by_state(state, type)) for type, state in known])
    counted: dict[str, dict[RunState, int]] = {}
    for (type, state), size in zip(known, found, strict=True):
        if size:
            counted.setdefault(type, {})[RunState(state)] = size
    return counted


async def backlog(driver: Driver) -> list[Backlog]:
    types = await members_of(driver, names.LANED_TYPES)
    kinds = await answers(driver, [Range(names.lanes(type)) for type in types])
    lanes = [(type, f"Q:{kind}:{type}") for type, some in zip(types, kinds, strict=True) for kind in some]
    reads: list[Read] = []
    for _, lane in lanes:
        reads += [Size(lane, is_due=True), Lowest(lane, 1, is_due=True)]
    found = await answers(driver, reads)
    due: dict[str, list[tuple[int, Micros]]] = {}
    for (type, _), size, first in zip(lanes, found[::2], found[1::2], strict=True):
        if size and first:
            due.setdefault(type, []).append((size, first[0][1]))
    return [
        Backlog(type=type, count=sum(size for size, _ in some), since=min(since for _, since in some))
        for type, some in sorted(due.items())
    ]


async def held(driver: Driver) -> dict[str, int]:
    holders = await members_of(driver, names.HOLDERS)
    found = await answers(driver, [Size(names.held_by(worker)) for worker in holders])
    return {worker: size for worker, size in zip(holders, found, strict=True) if size}


async def slots(driver: Driver, type: str | None) -> list[SlotUse]:
    used_names = await members_of(driver, names.SLOTS)
    types = (
        [type]
        if type is not None
        else sorted({*(limits.type_of(s) for s in used_names), *await members_of(driver, names.TYPES)})
    )
    queues = await answers(driver, [Range(names.key_queues(one)) for one in types])
    waiting_names = {guard.partition(":")[2] for some in queues for guard in some}
    every = sorted(name for name in {*used_names, *waiting_names} if type is None or limits.is_of(name, type))
    used = await partitions(driver, [Fields(names.slot(name), ("used",)) for name in every])
    waiting = await answers(driver, [Size(names.queue_index(name)) for name in every])
    return [
        SlotUse(name=name, used=int(one.fields.get("used", b"0")), waiting=size)
        for name, one, size in zip(every, used, waiting, strict=True)
        if one.fields or size
    ]


async def orphans(driver: Driver, limit: int) -> list[str]:
    """Return the ids of live runs that nothing would ever wake."""
    found: list[str] = []
    for name in await members_of(driver, names.STATES):
        state, _, type = name.partition(":")
        if state == DELETED or RunState(state).is_end:
            continue
        members = await members_of(driver, names.by_state(state, type))
        run_ids = [member[names.TIME_DIGITS :] for member in members]
        heads = await partitions(driver, [Fields(names.head(run_id), HEAD) for run_id in run_ids])
        for run_id, head in zip(run_ids, heads, strict=True):
            details = _details(run_id, head.fields, NO_FIELDS) if head.fields else None
            if details is None or details.unreadable:
                continue
            if rules.is_orphan(details.run, has_waits=bool(details.waits)):
                found.append(run_id)
                if len(found) == limit:
                    return found
    return found


# Things other than runs


async def topics(driver: Driver) -> list[Topic]:
    (found,) = await partitions(driver, [AllFields(names.TOPICS)])
    return [decode_topic(found.fields[name]) for name in sorted(found.fields)]


async def types(driver: Driver) -> list[TypeRule]:
    known = await members_of(driver, names.TYPES)
    found = await partitions(driver, [Fields(names.type_rule(type), (RULE,)) for type in known])
    return [decode_rule(one.fields[RULE]) for one in found if one.fields]


async def dead_letters(driver: Driver, query: ListDeadLetters) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    low = names.number_text(query.after + 1)
    while len(found) < query.limit:
        members = await members_of(driver, names.LETTERS, low, CHUNK)
        named = ((int(member[:16], 16), member[17:]) for member in members)
        chosen = [one for one, topic in named if query.topic is None or (topic and covers(query.topic, topic))]
        numbers = chosen[: query.limit - len(found)]
        letters = await partitions(driver, [Fields(names.letter(number), (VALUE,)) for number in numbers])
        found += [decode_letter(one.fields[VALUE]) for one in letters if one.fields]
        if len(members) < CHUNK:
            break
        low = names.number_text(int(members[-1][:16], 16) + 1)
    return found


async def schedules(driver: Driver, query: ListSchedules) -> list[Schedule]:
    if query.name is not None:
        (found,) = await partitions(driver, [Fields(names.schedule(query.name), (VALUE,))])
        some = [decode_schedule(found.fields[VALUE])] if found.fields else []
        return [schedule for schedule in some if query.admits(schedule)][: query.limit]
    chosen: list[Schedule] = []
    low = query.after
    while len(chosen) < query.limit:
        members = await members_of(driver, names.SCHEDULES, low, CHUNK)
        chosen += [schedule for schedule in await _schedules(driver, members) if query.admits(schedule)]
        if len(members) < CHUNK:
            break
        low = members[-1] + "\0"
    return chosen[: query.limit]


async def _schedules(driver: Driver, wanted: Sequence[str]) -> list[Schedule]:
    found = await partitions(driver, [Fields(names.schedule(name), (VALUE,)) for name in wanted])
    return [decode_schedule(one.fields[VALUE]) for one in found if one.fields]


async def due_schedules(driver: Driver, limit: int, after: tuple[Micros, str]) -> Due:
    low = names.time_text(after[0]) + after[1] + ("\0" if after[1] else "")
    due: list[Schedule] = []
    later: list[Micros] = []
    while True:
        count = limit - len(due)
        # One more than wanted, without an end: usually one trip reads what is due, and what comes after that.
        loaded = await driver.load([Range(names.DUE_SCHEDULES, low, limit=count + 1)])
        now, members = loaded.now, cast("list[str]", loaded.answers[0])
        ready = [member for member in members if _due_time(member) <= now]
        for one in await _schedules(driver, [member[names.TIME_DIGITS :] for member in ready[:count]]):
            if one.next_at is not None and one.next_at <= now:
                due.append(one)
            elif one.next_at is not None:
                later.append(one.next_at)  # another worker has fired it since its name was read
        is_end = len(ready) <= count
        if is_end or len(due) == limit:
            break
        low = ready[count - 1] + "\0"
    if not is_end:
        members = await members_of(driver, names.DUE_SCHEDULES, names.time_text(now + 1), 1)
    later += [_due_time(member) for member in members if _due_time(member) > now]
    return Due(schedules=tuple(due), next_at=min(later, default=None), now=now)


def _due_time(member: str) -> Micros:
    return int(member[: names.TIME_DIGITS], 16)


async def list_flows(driver: Driver, query: ListFlows) -> list[FlowDefinition]:
    is_exact = query.type is not None and not query.type.endswith(".*")
    types = [query.type or ""] if is_exact else await members_of(driver, names.FLOWS)
    found = await partitions(driver, [AllFields(names.flows(type)) for type in types])
    known = [one for partition in found for one in flows_of(partition.fields)]
    listed = [one for one in known if query.admits(one)][: query.limit]
    if not query.with_texts:
        return listed
    texts = await partitions(driver, [texts_read(one) for one in listed])
    # A definition may be pruned between the two reads.
    return [with_texts(one, some.fields) for one, some in zip(listed, texts, strict=True) if some.fields]


# Transfers


async def dump(driver: Driver, run_ids: Sequence[str]) -> list[Dump]:
    """Return the runs that are at rest, each with everything that belongs to it at one instant."""
    dumps: list[Dump] = []
    for run_id in run_ids:
        makers = (names.head, names.history, names.inbox, names.message_ids, names.values, names.replies)
        loaded = await driver.load([*(AllFields(name(run_id)) for name in makers), Log(names.audit(run_id))])
        head, history, inbox, ids, values, replied = (cast("Partition", one).fields for one in loaded.answers[:6])
        if not head:
            continue
        with readable(f"run {run_id}", FAILURES):
            run = run_of(head)
            if transfer.is_at_rest(run):
                dumps.append(
                    Dump(
                        run=run,
                        entries=history_of(history),
                        inbox=arrivals_of(inbox),
                        waits=waits_of(head.get(names.WAITS)),
                        values={name: value.decode() for name, value in values.items()},
                        receipts={id[1:]: int(at) for id, at in ids.items() if id.startswith("r")},
                        replies={id: decode_reply(reply) for id, reply in replied.items()},
                        audit=audit_rules.kept(facts_of(run_id, cast("list[bytes]", loaded.answers[6]))),
                    )
                )
    return dumps


async def kept_events(driver: Driver, after: int, limit: int) -> list[KeptEvent]:
    """Return the events that a run may still receive, with numbers above `after`, in the order of their numbers."""
    members = map(AgedEvent.parsed, await members_of(driver, names.EVENTS))
    kept = sorted((one.number, one.topic) for one in members if one.state in ("open", "pending") and one.number > after)
    found = await partitions(driver, [Fields(names.events(topic), (str(number),)) for number, topic in kept[:limit]])
    pairs = zip(kept, found, strict=False)
    return [decode_event(one.fields[str(number)]).kept(topic) for (number, topic), one in pairs if one.fields]


# Lists of runs: a page is a range of the smallest index that fits the filter, and the filter decides on each run


LONGEST_CHUNK = 500


async def list_runs(driver: Driver, query: Query) -> list[Details]:
    """Return the runs that a query admits, newest first."""
    if query.key is not None:
        details = await details_of(driver, await _with_key(driver, query.key))
        return [one for one in details if query.admits(one.run)][: query.limit]
    indexes = await _indexes(driver, query)
    low = names.time_text(query.created_from) if query.created_from is not None else ""
    before = None if query.before is None else names.time_text(query.before[0]) + query.before[1]
    until = None if query.created_until is None else names.time_text(query.created_until)
    high = min((bound for bound in (before, until) if bound is not None), default="")
    chosen: list[Details] = []
    while indexes and len(chosen) < query.limit:
        limit = min(LONGEST_CHUNK, query.limit - len(chosen))
        found = await answers(driver, [Range(index, low, high, limit, is_reverse=True) for index in indexes])
        members = sorted({member for some in found for member in some}, reverse=True)[:limit]
        details = await details_of(driver, [member[names.TIME_DIGITS :] for member in members])
        chosen += [one for one in details if query.admits(one.run)]
        if len(members) < limit:
            break
        high = members[-1]
    return chosen


async def _indexes(driver: Driver, query: Query) -> list[str]:
    """Return the indexes whose union has all runs that a query admits: the choice with the fewest members."""
    choices: list[list[str]] = [[names.tagged(name, value)] for name, value in query.tags.items()]
    if query.parent_id is not None:
        choices.append([names.kids_index(query.parent_id)])
    if query.states or query.type is not None or query.is_deleted:
        choices.append(await _by_state(driver, query))
    if not choices:
        return [names.ALL]
    if len(choices) == 1:
        return choices[0]
    counted = await answers(driver, [Size(index) for some in choices for index in some])
    totals: list[int] = []
    begin = 0
    for some in choices:
        totals.append(sum(counted[begin : begin + len(some)]))
        begin += len(some)
    return choices[totals.index(min(totals))]


async def _by_state(driver: Driver, query: Query) -> list[str]:
    known = [name.partition(":")[::2] for name in await members_of(driver, names.STATES)]
    wanted = {DELETED} if query.is_deleted else {state.value for state in query.states}
    return [
        names.by_state(state, type)
        for state, type in known
        if (state in wanted if wanted else state != DELETED) and (query.type is None or matches_type(type, query.type))
    ]


# The self-check: compares what is counted with the runs


async def finding_of_slots(driver: Driver) -> Finding:
    """Compare the number of runs that have each slot with the number that is kept."""
    slots = await members_of(driver, names.SLOTS)
    kept = await partitions(driver, [Fields(names.slot(slot), (USED,)) for slot in slots])
    used = Counter({slot: int(one.fields.get(USED, b"0")) for slot, one in zip(slots, kept, strict=True)})
    types = await members_of(driver, names.TYPES)
    members = await answers(driver, [Range(names.slotted(type)) for type in types])
    run_ids = [run_id for some in members for run_id in some]
    heads = await partitions(driver, [Fields(names.head(run_id), HEAD) for run_id in run_ids])
    found = Counter(slot for head in heads if head.fields for slot in run_of(head.fields).slots)
    return finding_of(sum(abs(used[slot] - found[slot]) for slot in {*used, *found}))
