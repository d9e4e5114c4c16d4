"""The namespaces of a Holdfast: schedules, flows, topics, types, dead letters and workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core import limits
from holdfast.core.clock import moment
from holdfast.core.codec import ANY, encode_any
from holdfast.core.commands import (
    ChangeTypes,
    EmitEvents,
    PauseSchedules,
    PurgeDeadLetters,
    PutSchedules,
    RegisterFlow,
    RemoveSchedules,
    ReplayDeadLetters,
    SetTopics,
    TriggerSchedule,
)
from holdfast.core.errors import InvalidRequest, ScheduleNotFound, StoreUnavailable, nearest
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.intent import check_actor, check_topic, check_type, is_count
from holdfast.core.limits import checked_change
from holdfast.core.model import Event, Topic, TopicMode, TypeRule, new_id
from holdfast.core.news import Signal
from holdfast.core.questions import (
    PAGE_LIMIT,
    CountLeases,
    CountRuns,
    CountSlots,
    ListDeadLetters,
    ListFlows,
    ListSchedules,
    ListTopics,
    ListTypes,
)
from holdfast.core.schedules import UPCOMING, ScheduleOptions, check_schedule_name, checked_schedule
from holdfast.core.states import RunState
from holdfast.core.topics import checked_topic
from holdfast.engine.explain import is_alive
from holdfast.engine.handle import RunHandle
from holdfast.engine.info import DeadLetterInfo, ScheduleInfo, TopicInfo, TypeInfo, WorkerInfo, record
from holdfast.engine.lists import AsyncList, listed
from holdfast.engine.session import Session, SessionPart, database_of
from holdfast.flows.compiler import compile_flow


class Schedules(SessionPart):
    """`hf.schedules`: create, change, list and control the schedules that start runs over time."""

    async def put(
        self,
        name: str,
        workflow: Any,
        /,
        *args: Any,
        cron: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Create a schedule, or change the one with this name. It starts runs of `workflow` with `args`.

            await hf.schedules.put("nightly", report, "sales", cron="0 3 * * *", zone="Europe/Paris")

        `workflow` is a workflow, a task, a bound call, or the name of a type followed by a payload. The schedule fires
        at the times of `cron`, or every `every` seconds (`ScheduleOptions`). Putting it again unchanged has no effect.
        """
        known = self._session.registry.get(workflow) if isinstance(workflow, str) else None
        schedule = checked_schedule(name, workflow, args, cron, options, known=known)
        if (known := self._session.registry.get(schedule.type)) is not None:
            known.signature.decode(
                schedule.payload, f"payload of {schedule.type!r}"
            )  # refuse it now, not when it fires
        await self._session.open()
        (stored,) = await self._session.store.apply(PutSchedules(schedules=[schedule]))
        return ScheduleInfo.of(stored)

    def list(self, *, type: str | None = None, limit: int | None = None) -> AsyncList[ScheduleInfo]:
        """List all schedules, by name. `type` is the name of a type, or a prefix such as `shop.*`."""
        return AsyncList(self._each(type, limit))

    async def _each(self, type: str | None, limit: int | None) -> AsyncIterator[ScheduleInfo]:
        store = await self._session.opened_store()
        async for schedule in listed(store, ListSchedules(type=type), limit):
            yield ScheduleInfo.of(schedule)

    async def get(self, name: str) -> ScheduleInfo:
        """Return one schedule. Raises `ScheduleNotFound` if there is none with this name."""
        check_schedule_name(name)
        await self._session.open()
        found = await self._session.store.catalog(ListSchedules(name=name))
        if not found:
            raise await self._not_found(name)
        return ScheduleInfo.of(found[0])

    async def next(self, name: str, count: int = UPCOMING) -> Sequence[datetime]:
        """Return the next `count` times at which a schedule fires, in its own zone. Empty while it is paused."""
        if not is_count(count):
            raise InvalidRequest(f"count={count!r}: expected a whole number of at least 1")
        return (await self.get(name)).next_times(count)

    async def pause(self, name: str) -> bool:
        """Stop a schedule from firing until it is resumed. Returns False if it is paused already."""
        return await self._pause(name, is_paused=True)

    async def resume(self, name: str) -> bool:
        """Let a paused schedule fire again, from its next time on. Returns False if it is not paused."""
        return await self._pause(name, is_paused=False)

    async def _pause(self, name: str, *, is_paused: bool) -> bool:
        await self.get(name)
        (is_changed,) = await self._session.store.apply(PauseSchedules(names=[name], is_paused=is_paused))
        return is_changed

    async def trigger(self, name: str) -> RunHandle[Any]:
        """Start a run of a schedule now, even if it is paused. Its next times do not change."""
        check_schedule_name(name)
        await self._session.open()
        run_id = new_id()
        if not await self._session.store.apply(TriggerSchedule(name=name, run_id=run_id)):
            raise await self._not_found(name)
        if self._session.signals.wants("run.started"):
            await self._signal_trigger(run_id)
        return RunHandle(self._session, run_id, ANY, created=True)

    async def _signal_trigger(self, run_id: str) -> None:
        try:
            details = await self._session.store.get(run_id)
        except StoreUnavailable:
            return  # the schedule was triggered; only the signal is missing
        if details is not None:
            at, type = moment(details.run.created_at), details.run.type
            self._session.signals.send(
                Signal(name="run.started", at=at, run_id=run_id, type=type, state=RunState.PENDING)
            )

    async def remove(self, name: str) -> bool:
        """Remove a schedule. Its runs stay. Returns False if there was none with this name.

        A schedule that code declares with `@hf.schedule` comes back when a worker with that code starts.
        """
        check_schedule_name(name)
        await self._session.open()
        (is_removed,) = await self._session.store.apply(RemoveSchedules(names=[name]))
        return is_removed

    async def _not_found(self, name: str) -> ScheduleNotFound:
        near = nearest(name, [schedule.name async for schedule in self.list(limit=1_000)])
        meant = f"did you mean {near!r}?" if near else "`holdfast schedules ls` and hf.schedules.list() list them"
        return ScheduleNotFound(f"there is no schedule {name!r}; {meant}")


LONG_TEXT_CHARACTERS = 10_000
"""Length from which a text is compiled in a thread."""
VERSION_SHOWN = 12
"""Number of characters of a version that people see."""


class FlowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered version of a flow. `hf.flows.list` leaves out its `source`; `hf.flows.get` has it."""

    type: str
    """The type under which runs start."""
    version: str
    """The SHA-256 of the program, without comments and formatting."""
    description: str
    """The first line of the program's docstring."""
    registered_at: datetime
    """When it was registered, by the clock of the store."""
    by: str
    """The person or program that registered it."""
    is_newest: bool
    """True if new runs of the type execute this version."""
    source: str = ""
    """The text of the program."""


class RegisteredFlowInfo(FlowInfo, frozen=True, kw_only=True):
    """The result of a registration. `is_new` is False if the version was the newest one already."""

    is_new: bool
    """True if the registration changed something."""


class Flows(SessionPart):
    """`hf.flows`: register, list and read flows, which are workflows whose program is text in the store."""

    async def register(self, text_or_path: str | Path, *, type: str, by: str = "") -> RegisteredFlowInfo:
        """Register a flow under a type: its text, or the path of a file. New runs of the type execute it.

        Runs that exist keep their version. Registering the newest version again changes nothing. Raises `FlowRefused`
        with all mistakes if the text is not a flow, and `InvalidRequest` if the type is code.
        """
        check_type(type)
        self._refuse_code(type)
        source = source_of(text_or_path)
        # A short text takes a few milliseconds. A long one, which may be hostile, leaves the event loop to others.
        is_long = len(source) > LONG_TEXT_CHARACTERS
        program = await asyncio.to_thread(compile_flow, source) if is_long else compile_flow(source)
        definition = FlowDefinition(
            type=type,
            version=program.version,
            source=source,
            program=program.encode(),
            instruction_set=program.instruction_set,
            description=program.description,
        )
        store = await self._session.opened_store()
        answer = await store.apply(RegisterFlow(definition=definition, by=by))
        return record(RegisteredFlowInfo, answer.definition, is_newest=True, source=source, is_new=answer.is_new)

    def _refuse_code(self, type: str) -> None:
        known = self._session.registry.get(type)
        if known is not None:
            place = getattr(known.function, "__code__", None)
            where = f" ({place.co_filename}:{place.co_firstlineno})" if place is not None else ""
            raise InvalidRequest(
                f"type {type!r} is code here: {known.function.__qualname__}{where}; "
                "register the flow under another type"
            )

    def list(self, type: str | None = None) -> AsyncList[FlowInfo]:
        """List the registered versions of all flows, or of a type such as `access.*`, by type and then by time."""

        async def infos() -> AsyncIterator[FlowInfo]:
            held: FlowDefinition | None = None
            async for one in self._registrations(ListFlows(type=type)):
                if held is not None:
                    yield info_of(held, is_newest=held.type != one.type)
                held = one
            if held is not None:
                yield info_of(held, is_newest=True)

        return AsyncList(infos())

    async def get(self, type: str, version: str | None = None) -> FlowInfo:
        """Return a flow with its source: its newest version, or the one that begins with `version`.

        Raises `InvalidRequest` if there is none, or if several versions begin like that.
        """
        check_type(type)
        known = [one async for one in self._registrations(ListFlows(type=type))]
        if not known:
            raise InvalidRequest(
                f"there is no flow of the type {type!r}; hf.flows.list() and `holdfast flows ls` list them"
            )
        wanted = {one.version for one in known if one.version.startswith(version or "")}
        if version is None:
            wanted = {known[-1].version}
        if len(wanted) != 1:
            versions = ", ".join(dict.fromkeys(one.version[:VERSION_SHOWN] for one in known))
            what, begin = (f"{len(wanted)} versions", "begin") if wanted else ("no version", "begins")
            raise InvalidRequest(f"{what} of the flow {type!r} {begin} with {version!r}; it has {versions}")
        store = await self._session.opened_store()
        (found, *_) = await store.catalog(ListFlows(type=type, version=wanted.pop(), with_texts=True, limit=1))
        return info_of(found, is_newest=found.version == known[-1].version)

    async def _registrations(self, question: ListFlows) -> AsyncIterator[FlowDefinition]:
        store = await self._session.opened_store()
        async for one in listed(store, question):
            yield one


def info_of(definition: FlowDefinition, *, is_newest: bool) -> FlowInfo:
    """Return a definition as users see it."""
    return record(FlowInfo, definition, is_newest=is_newest)


def source_of(text_or_path: str | Path) -> str:
    """Return the text of a flow. A single line that ends in `.py` or `.flow` is a path."""
    if not isinstance(text_or_path, (str, Path)):
        raise InvalidRequest(f"{text_or_path!r:.80}: expected the text of a flow, or the path of its file")
    if isinstance(text_or_path, str) and ("\n" in text_or_path or not text_or_path.endswith((".py", ".flow"))):
        return text_or_path
    try:
        return Path(text_or_path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"the flow {str(text_or_path)!r} cannot be read: {error}") from error


class Topics(SessionPart):
    """`hf.topics`: set and list how events are delivered and kept. A topic without rules needs no setting."""

    async def set(
        self,
        name: str,
        *,
        mode: TopicMode | None = None,
        retention: float | timedelta | None = None,
        max_pending: int | None = None,
    ) -> TopicInfo:
        """Set how events of a topic are delivered and kept. An option that is left out stays as it is.

        - `mode`: `fanout` (the default) delivers an event to every run that waits for it and began before it. `queue`
          delivers it to exactly one run, even if that run begins later.
        - `retention`: how long events are kept, in seconds or as a timedelta (default: 7 days).
        - `max_pending`: how many events are kept (default: 10,000).

        About once a minute, workers remove events that are too old or too many. Events of a queue become dead letters.

        A name that ends in `*` covers all topics with that prefix. The exact name wins over a prefix, and a longer
        prefix over a shorter one.
        """
        checked_topic(Topic(name=name), mode, retention, max_pending)  # refuses wrong values before the store is opened
        store = await self._session.opened_store()
        known = {topic.name: topic for topic in await store.catalog(ListTopics())}
        topic = checked_topic(known.get(name) or Topic(name=name), mode, retention, max_pending)
        await store.apply(SetTopics(topics=[topic]))
        return TopicInfo.of(topic)

    def list(self) -> AsyncList[TopicInfo]:
        """List the topics for which rules were set, by name."""

        async def topics() -> list[TopicInfo]:
            store = await self._session.opened_store()
            return [TopicInfo.of(topic) for topic in await store.catalog(ListTopics())]

        return AsyncList.of(topics)


class Types(SessionPart):
    """`hf.types`: limit, enable, disable and list types of runs. All workers on the store obey."""

    async def set(
        self,
        name: str,
        *,
        enabled: bool | UnsetType = UNSET,
        concurrency: int | UnsetType | None = UNSET,
        per_key: Mapping[str, int] | UnsetType | None = UNSET,
        rate: tuple[int, float | timedelta] | UnsetType | None = UNSET,
        retention: float | timedelta | UnsetType | None = UNSET,
        description: str | UnsetType = UNSET,
        runtime: str | UnsetType = UNSET,
    ) -> None:
        """Set the rules of a type, at once and for all workers. An option that is left out stays as it is.

        - `enabled`: False keeps its runs from beginning and continuing, until it is True again.
        - `concurrency`: maximum number of its runs that execute at once. None: no limit.
        - `per_key`: the same for runs with the same value of a tag, such as `{"tenant": 2}`. None: no limit.
        - `rate`: maximum number of runs that begin in a period, such as `(100, 60)` for 100 in any 60 seconds. None: no
          limit.
        - `retention`: how long its runs are kept after their end, in seconds or as a timedelta. None: the retention of
          the worker.
        - `description` and `runtime`: texts for people; workers set them.
        """
        change = checked_change(
            name,
            enabled=enabled,
            concurrency=concurrency,
            per_key=per_key,
            rate=rate,
            retention=retention,
            description=description,
            runtime=runtime,
        )
        store = await self._session.opened_store()
        await store.apply(ChangeTypes(changes=[change]))

    async def enable(self, name: str) -> None:
        """Let runs of a type begin and continue again."""
        await self.set(name, enabled=True)

    async def disable(self, name: str) -> None:
        """Keep workers from claiming runs of a type until it is enabled. New runs are accepted and wait.

        A run that a worker holds at that moment continues until it waits or ends.
        """
        await self.set(name, enabled=False)

    def list(self) -> AsyncList[TypeInfo]:
        """List every type that has a rule, a run or a worker, by name."""
        return AsyncList.of(self._all)

    async def _all(self) -> Sequence[TypeInfo]:
        store = await self._session.opened_store()
        rules = {rule.name: rule for rule in await store.catalog(ListTypes())}
        workers = await store.workers()
        counts = await store.stats(CountRuns())
        parked: Counter[str] = Counter()
        for use in await store.stats(CountSlots()):
            parked[limits.type_of(use.name)] += use.waiting
        names = sorted({*rules, *counts, *(type for worker in workers for type in worker.types)})
        return [
            TypeInfo.of(
                rules.get(name) or TypeRule(name=name),
                [worker for worker in workers if name in worker.types],
                counts.get(name, {}),
                parked[name],
            )
            for name in names
        ]


class DeadLetters(SessionPart):
    """`hf.dead_letters`: list, replay and purge events and messages that could not be delivered."""

    def list(self, topic: str | None = None, *, limit: int | None = None) -> AsyncList[DeadLetterInfo]:
        """List dead letters, oldest first: of one topic, of a family such as `orders.*`, or all."""
        return AsyncList(self._each(topic, limit))

    async def _each(self, topic: str | None, limit: int | None) -> AsyncIterator[DeadLetterInfo]:
        if topic is not None:
            check_topic(topic)
        store = await self._session.opened_store()
        async for letter in listed(store, ListDeadLetters(topic=topic), limit):
            yield DeadLetterInfo.of(letter)

    async def replay(self, numbers: Iterable[int] | None = None, *, topic: str | None = None, by: str = "") -> int:
        """Deliver dead letters again, chosen by their `numbers`, or by a topic or family.

        Returns how many were delivered. An event goes back to its queue, for the next run that waits. A message is sent
        to its run again; if that has ended, the letter stays. `topic="*"` chooses all events.
        """
        actor = check_actor(by)
        return await self._with_letters(numbers, topic, lambda some: ReplayDeadLetters(numbers=some, by=actor))

    async def purge(self, numbers: Iterable[int] | None = None, *, topic: str | None = None) -> int:
        """Remove dead letters, chosen by their `numbers`, or by a topic or family. Returns how many were removed."""
        return await self._with_letters(numbers, topic, lambda some: PurgeDeadLetters(numbers=some))

    async def _with_letters(
        self,
        numbers: Iterable[int] | None,
        topic: str | None,
        command: Callable[[Sequence[int]], ReplayDeadLetters | PurgeDeadLetters],
    ) -> int:
        """Apply a command to the chosen letters, a page at a time."""
        if (numbers is None) == (topic is None):
            raise InvalidRequest(
                "choose dead letters by numbers=[…] or by topic=…, not both; topic='*' means all topics"
            )
        if numbers is None:
            await self._session.open()
            chosen = [letter.number async for letter in self.list(topic)]
        else:
            chosen = [_check_number(number) for number in numbers]
            await self._session.open()
        done = 0
        for start in range(0, len(chosen), PAGE_LIMIT):
            done += await self._session.store.apply(command(chosen[start : start + PAGE_LIMIT]))
        return done


def _check_number(number: object) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise InvalidRequest(f"{number!r} is not the number of a dead letter; `hf.dead_letters.list()` lists them")
    return number


class Workers(SessionPart):
    """`hf.workers`: list the workers of all processes."""

    def list(self) -> AsyncList[WorkerInfo]:
        """List all workers: those alive, and dead ones whose runs no other worker has taken over yet."""
        return AsyncList.of(self._all)

    async def _all(self) -> Sequence[WorkerInfo]:
        store = await self._session.opened_store()
        workers = await store.workers()
        held = await store.stats(CountLeases())
        now = await store.now()
        return [
            WorkerInfo.of(worker, held=held.get(worker.id, 0), is_alive=is_alive(worker, now)) for worker in workers
        ]


async def emit(session: Session, topic: str, payload: Any, *, by: str) -> int:
    """Publish an event. Returns the number of waiting runs that it reached."""
    event, actor = _event(topic, payload), check_actor(by)
    await session.open()
    (reached,) = await session.store.apply(EmitEvents(events=[event], by=actor))
    return reached


async def emit_in(session: Session, connection: object, topic: str, payload: Any, *, by: str) -> int:
    """Publish an event in a transaction of the user. Returns the number of waiting runs that it will reach."""
    event, actor = _event(topic, payload), check_actor(by)
    await session.open()
    (reached,) = await database_of(session, "emit_in").emit_in(connection, [event], by=actor)
    return reached


def _event(topic: str, payload: Any) -> Event:
    return Event(id=new_id(), topic=check_topic(topic), payload=encode_any(payload, f"payload of event {topic!r}"))
