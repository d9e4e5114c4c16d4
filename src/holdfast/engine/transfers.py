"""Transfers: exports write the runs of a store as lines of JSON, and imports read them into another store.

Live runs are paused first, and stay paused in the store they come from. An export keeps at most one page of runs in
memory, and with a filter also the ids of the chosen live runs. An import is safe to repeat: runs that exist already do
not change, and runs that the export paused are resumed after the last line.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core import transfer as export_format
from holdfast.core.codec import json_flaw
from holdfast.core.commands import ChangeTypes, Pause, Resume, SetTopics
from holdfast.core.errors import InvalidRequest, RunNotFound, Unreadable
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.intent import check_actor, check_reason
from holdfast.core.model import DeadLetter, Run, Schedule, Value, WaitKind, new_id
from holdfast.core.ports import Store, installed_version
from holdfast.core.questions import Details, ListDeadLetters, ListFlows, ListSchedules, ListTopics, ListTypes, Query
from holdfast.core.rules import is_child, is_due
from holdfast.core.states import ENDS, LIVE, RunState
from holdfast.core.transfer import (
    EXPORT,
    IMPORT,
    Dump,
    Fate,
    KeptEvent,
    Restoration,
    export_pause,
    is_at_rest,
    is_ruled,
    ruling,
    values_of,
)
from holdfast.core.wire import joined
from holdfast.engine.info import RunInfo
from holdfast.engine.lists import (
    Filter,
    checked_filter,
    listed,
    pages,
    query_of,
    run_pages,
)
from holdfast.engine.session import Session, transfer_of

RUNS_AT_ONCE = 50
FLOWS_AT_ONCE = 50
TIMEOUT_SECONDS = 60.0
CHECK_SECONDS = 0.2
"""Interval between two checks for runs that workers have released."""

ProgressCallback = Callable[[str, int], object]
"""Callback for progress. It gets what is being done, and a count."""

_BUSY = "its worker did not release it in time"
_GONE = "its worker has died; start a worker that takes it over and releases it"
_OF_FAMILY = "it belongs together with run {}, whose worker did not release that run in time"
_MEANWHILE = "it was started or resumed meanwhile"


class LeftRun(Value, frozen=True, kw_only=True):
    """A run that was not exported: its `id`, and the reason (`why`)."""

    id: str
    why: str


class Export:
    """The lines of an export, as bytes: `async for line in hf.export(): file.write(line)`. Iterate once.

    The attributes are complete after the last line.
    """

    def __init__(
        self,
        session: Session,
        chosen: Filter,
        *,
        live: bool,
        timeout: float,
        reason: str,
        by: str,
        progress: ProgressCallback | None,
    ) -> None:
        self.id = new_id()
        """The id of this export."""
        self.counts: Counter[str] = Counter()
        """Number of lines of each kind, such as `run`."""
        self.left: list[LeftRun] = []
        """Live runs that were left out, because their worker did not release them in time."""
        self.unreadable: list[LeftRun] = []
        """Runs that cannot be decoded. They stay in the store."""
        self.taken_along: list[str] = []
        """Live runs that the filter did not choose, but which are parents or children of chosen ones."""
        self._session = session
        self._chosen = checked_filter(chosen)
        self._is_live = live
        self._timeout_seconds = timeout
        self._reason = check_reason(reason)
        self._by = check_actor(by)
        self._progress = progress or _say_nothing
        self._is_filtered = any(self._chosen.values())
        self._members: set[str] = set()  # in a filtered export: the live runs to export

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self._session.open()
        store = self._session.store
        transfer = transfer_of(store, "export")  # first, so that a refusal comes before anything is paused
        query = await query_of(store, self._chosen)
        if self._is_live:
            await self._pause_all(store, query)
        last_event = await transfer.last_event()  # after the pause, when no run can receive a newer event
        yield export_format.encode(await self._header(store, last_event))
        async for line in self._contents(store, query, last_event):
            self.counts[export_format.tag_of(line)] += 1
            yield export_format.encode(line)
        yield export_format.encode(export_format.Footer(counts=dict(self.counts), left=len(self.left)))

    async def _header(self, store: Store, last_event: int) -> export_format.Header:
        return export_format.Header(
            format=export_format.FORMAT,
            export_id=self.id,
            exported_at=await store.now(),
            version=installed_version(),
            store=type(store).__name__.removesuffix("Store").lower(),
            last_event=last_event,
            fields=export_format.known_fields(),
        )

    async def _contents(self, store: Store, query: Query, last_event: int) -> AsyncIterator[export_format.Content]:
        async for line in _before_runs(store, has_rules=self._is_live):
            yield line
        async for run_ids in self._run_ids(store, query):
            for run_line in await self._dumped(store, run_ids):
                yield run_line
            self._progress("exported", len(run_ids))
        for run in self.unreadable:
            yield export_format.UnreadableLine(id=run.id, why=run.why)
        if self._is_live:
            async for event in self._events(store, last_event):
                yield event
        if self._is_live and not self._is_filtered:
            async for line in _rest(store):
                yield line

    async def _dumped(self, store: Store, run_ids: Sequence[str]) -> list[export_format.RunLine]:
        """Return the lines of some runs. A run that cannot be decoded is noted, and hides no other."""
        try:
            dumps = await transfer_of(store, "export").dump(run_ids)
        except Unreadable as error:
            if len(run_ids) == 1:
                self._mark(run_ids[0], str(error))
                return []
            return [line for run_id in run_ids for line in await self._dumped(store, [run_id])]
        readable = []
        for dump in dumps:
            flaws = [f"{what}: {flaw}" for what, value in values_of(dump) if (flaw := json_flaw(value)) is not None]
            if why := joined(flaws):
                self._mark(dump.run.id, why)
            else:
                readable.append(export_format.RunLine(dump=dump))
        return readable

    def _mark(self, run_id: str, why: str) -> None:
        if all(run.id != run_id for run in self.unreadable):
            self.unreadable.append(LeftRun(id=run_id, why=why))

    # Choosing

    async def _run_ids(self, store: Store, query: Query) -> AsyncIterator[Sequence[str]]:
        """Yield the ids of the runs to export, a few at a time. The other live runs are added to `left`."""
        left, members = {run.id for run in self.left}, set(self._members)
        states = query.states if self._is_live else (query.states or ENDS) & ENDS
        async for page in run_pages(store, replace(query, states=states)):
            going = []
            for run in self._readable(page):
                members.discard(run.id)
                if run.id in left:
                    continue
                if run.state.is_end or is_at_rest(run):
                    going.append(run.id)
                else:
                    self.left.append(LeftRun(id=run.id, why=_MEANWHILE))
            for some in _in_parts(going):
                yield some
        self.taken_along = sorted(members - left)
        for some in _in_parts(self.taken_along):
            yield some

    def _readable(self, page: Sequence[Details]) -> list[Run]:
        """Return the runs of a page that can be decoded, and note the others."""
        readable = []
        for details in page:
            if (why := RunInfo.of(details).unreadable) is None:
                readable.append(details.run)
            else:
                self._mark(details.run.id, why)
        return readable

    async def _events(self, store: Store, last_event: int) -> AsyncIterator[export_format.EventLine]:
        """Yield the kept events. Queued events are included only without a filter, when no run is left to take them."""

        def read(last: KeptEvent | None, size: int) -> Awaitable[Sequence[KeptEvent]]:
            return transfer_of(store, "export").kept_events(0 if last is None else last.number, size)

        async for page in pages(read):
            for event in page:
                if event.number <= last_event and not (event.is_queued and self._is_filtered):
                    yield export_format.EventLine(event=event)

    # Pausing

    async def _pause_all(self, store: Store, query: Query) -> None:
        """Pause the runs to export, repeatedly: a run may start children before its worker releases it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_seconds
        is_first = True
        while True:
            found, waiting = 0, []
            async for runs in self._moving(store, query):
                found += len(runs)
                waiting += [run.id for run in runs if run.is_held or not is_first]
                for some in _in_parts([run.id for run in runs if not run.is_pausing]):
                    await asyncio.gather(*(self._pause(store, run_id) for run_id in some))
            if not found:
                return
            if waiting and loop.time() >= deadline:
                await self._leave(store, waiting)
                return
            if waiting:
                self._progress("waiting for", len(waiting))
                await asyncio.sleep(min(CHECK_SECONDS, max(0.0, deadline - loop.time())))
            is_first = False

    async def _pause(self, store: Store, run_id: str) -> None:
        try:
            await store.apply(Pause(run_id=run_id, id=EXPORT + self.id, reason=self._reason, by=self._by))
        except RunNotFound:
            return
        self._progress("paused", 1)

    async def _moving(self, store: Store, query: Query) -> AsyncIterator[Sequence[Run]]:
        """Yield the live runs to export that are not at rest. A filter also selects the families of chosen runs."""
        states = (query.states or LIVE) & LIVE
        if not states:
            return
        if not self._is_filtered:
            async for page in run_pages(store, replace(query, states=states - {RunState.PAUSED})):
                yield [run for run in self._readable(page) if not is_at_rest(run)]
            return
        met: set[str] = set()
        async for page in run_pages(store, replace(query, states=states)):
            for chosen in self._readable(page):
                if chosen.id not in met:
                    family = await family_of(store, chosen)
                    met.update(run.id for run in family)
                    yield [run for run in family if not is_at_rest(run)]
        self._members |= met

    async def _leave(self, store: Store, busy: Sequence[str]) -> None:
        """Leave out the runs that were not released in time, and their families."""
        left = dict.fromkeys(busy, _BUSY)
        now = await store.now()
        for run_id in busy:
            details = await store.get(run_id)
            if details is not None and details.run.is_held and is_due(details.run, now):
                left[run_id] = _GONE  # its lease has expired, and no other worker has taken it over
            for member in [] if details is None else await family_of(store, details.run):
                left.setdefault(member.id, _OF_FAMILY.format(run_id))
        self.left += [LeftRun(id=run_id, why=why) for run_id, why in left.items()]


async def family_of(store: Store, run: Run) -> list[Run]:
    """Return the live family of a run: its live ancestors, and all live runs below the topmost of them.

    A run that was only started under a parent's id is no child of it. Such runs may even name each other.
    """
    while is_child(run) and (parent := await store.get(run.parent_id or "")) is not None:
        if parent.run.state.is_end:
            break
        run = parent.run
    family = [run]
    for member in family:
        async for page in run_pages(store, Query(parent_id=member.id, states=LIVE)):
            family += [details.run for details in page if is_child(details.run)]
    return family


async def _before_runs(store: Store, *, has_rules: bool) -> AsyncIterator[export_format.Content]:
    """Yield the registrations of flows, and then the rules of topics and types.

    Flows come first, so that an import that refuses one has written nothing.
    """
    async for flow in listed(store, ListFlows(with_texts=True), page_size=FLOWS_AT_ONCE):
        yield export_format.FlowLine(flow=flow)
    for topic in await store.catalog(ListTopics()) if has_rules else ():
        yield export_format.TopicLine(topic=topic)
    for rule in await store.catalog(ListTypes()) if has_rules else ():
        if is_ruled(rule):
            yield export_format.TypeLine(type=rule)


async def _rest(store: Store) -> AsyncIterator[export_format.Content]:
    """Yield what belongs to no run: dead letters, and then schedules.

    Schedules come last, so that they include the runs that they started meanwhile.
    """
    async for letter in listed(store, ListDeadLetters()):
        yield export_format.LetterLine(letter=letter)
    async for schedule in listed(store, ListSchedules()):
        yield export_format.ScheduleLine(schedule=schedule)


def _in_parts(run_ids: Iterable[str]) -> Iterable[Sequence[str]]:
    chosen = list(run_ids)
    for start in range(0, len(chosen), RUNS_AT_ONCE):
        yield chosen[start : start + RUNS_AT_ONCE]


BYTES_AT_ONCE = 4 * 2**20
OTHERS_AT_ONCE = 500

Lines = Iterable[str | bytes] | AsyncIterable[str | bytes]

_REFUSALS = {
    "newer": "exists here in an older state, from an earlier move; import the file into an empty store",
    "stranger": "has the same id as another run here",
    "key": "has the key {key!r}, which belongs to run {other} here",
}


class RefusedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was not imported: its `id`, and the reason (`why`)."""

    id: str
    why: str


class ImportReport(msgspec.Struct, kw_only=True):
    """The result of an import, which is safe to repeat.

    `flows`, `topics`, `types`, `schedules`, `events` and `letters` are the numbers of those that were imported.
    """

    export_id: str = ""
    """The id of the export."""
    restored: int = 0
    """Number of runs that were imported."""
    known: int = 0
    """Number of runs that existed already and did not change."""
    resumed: int = 0
    """Number of runs that the export had paused and that continue here."""
    flows: int = 0
    topics: int = 0
    types: int = 0
    schedules: int = 0
    events: int = 0
    skipped: int = 0
    """Number of events that were not imported, because other events have their numbers here."""
    letters: int = 0
    left: int = 0
    """Number of runs that the export left out."""
    refused: list[RefusedRun] = msgspec.field(default_factory=list)
    """Runs of the file that could not be imported."""
    unreadable: list[RefusedRun] = msgspec.field(default_factory=list)
    """Runs that the export could not decode."""
    was_finished: bool = False
    """True if all of it was imported before, so that this import did nothing."""


class Import:
    """Imports lines in batches."""

    def __init__(self, store: Store, progress: ProgressCallback, *, by: str = "") -> None:
        self.report = ImportReport()
        self._store = store
        self._progress = progress
        self._by = by
        self._reading = export_format.ExportReader()
        self._runs: list[Dump] = []
        self._events: list[KeptEvent] = []
        self._letters: list[DeadLetter] = []
        self._flows: list[FlowDefinition] = []
        self._schedules: list[Schedule] = []
        self._size = 0
        self._topics: set[str] = set()
        self._types: set[str] = set()
        self._pauses: set[str] = set()  # the requests by which exports paused runs of this file

    async def take(self, source: Lines) -> ImportReport:
        """Import all lines. If one is refused, the runs before it stay imported, and those paused stay paused."""
        try:
            async for text in _each(source):
                content = self._reading.read(text)
                if isinstance(content, export_format.Header):
                    await self._begin(content)
                elif content is not None and not self.report.was_finished:
                    await self._add(content, len(text))
            self.report.left = self._reading.end().left
        except InvalidRequest as refusal:
            raise InvalidRequest(f"{refusal}\n{self._so_far()}") from None
        if not self.report.was_finished:
            await self._flush()
            await self._resume()
            # Schedules come last, because they may fire at once.
            self.report.schedules = await transfer_of(self._store, "import_").restore_schedules(self._schedules)
            await transfer_of(self._store, "import_").restore(self._restoration(is_last=True))
        return self.report

    def _so_far(self) -> str:
        report = self.report
        if not (report.restored or report.flows):
            return "Nothing was imported."
        return (
            f"{report.restored} runs were imported before that. Runs that the export paused stay paused; none was "
            "resumed. Import a whole file of the same store to continue: runs that exist already do not change."
        )

    async def _begin(self, header: export_format.Header) -> None:
        self.report.export_id = header.export_id
        self._topics = {topic.name for topic in await self._store.catalog(ListTopics())}
        self._types = {rule.name for rule in await self._store.catalog(ListTypes()) if is_ruled(rule)}
        # This comes first, so that events emitted from now on have higher numbers than all events of the imported runs.
        answer = await transfer_of(self._store, "import_").restore(self._restoration())
        self.report.was_finished = answer.is_finished

    async def _add(self, line: export_format.Content, size: int) -> None:
        if self._flows and not isinstance(line, export_format.FlowLine):
            await self._flush()  # a refused flow keeps everything after it from being written
        match line:
            case export_format.FlowLine(flow=flow):
                self._flows.append(flow)
            case export_format.RunLine(dump=dump):
                self._runs.append(dump)
            case export_format.UnreadableLine(id=run_id, why=why):
                self.report.unreadable.append(RefusedRun(id=run_id, why=why))
            case export_format.EventLine(event=event):
                self._events.append(event)
            case export_format.LetterLine(letter=letter):
                self._letters.append(letter)
            case export_format.ScheduleLine(schedule=schedule):
                self._schedules.append(schedule)
            case export_format.TopicLine() | export_format.TypeLine():
                await self._rule(line)
        self._size += size
        if self._is_full():
            await self._flush()

    async def _rule(self, line: export_format.TopicLine | export_format.TypeLine) -> None:
        """Set the rules of a topic or type, unless this store has rules for it."""
        if isinstance(line, export_format.TopicLine) and line.topic.name not in self._topics:
            await self._store.apply(SetTopics(topics=[line.topic]))
            self.report.topics += 1
        elif isinstance(line, export_format.TypeLine) and line.type.name not in self._types:
            await self._store.apply(ChangeTypes(changes=[ruling(line.type)]))
            self.report.types += 1

    def _is_full(self) -> bool:
        others = len(self._events) + len(self._letters)
        return len(self._runs) >= RUNS_AT_ONCE or others >= OTHERS_AT_ONCE or self._size >= BYTES_AT_ONCE

    async def _flush(self) -> None:
        """Write the current batch."""
        restoration = self._restoration(runs=self._runs, events=self._events, letters=self._letters, flows=self._flows)
        answer = await transfer_of(self._store, "import_").restore(restoration)
        for dump, fate in zip(self._runs, answer.fates, strict=True):
            self._note(dump, fate)
        self.report.events += answer.events
        self.report.skipped += answer.skipped
        self.report.letters += answer.letters
        self.report.flows += answer.flows
        self._progress("imported", len(self._runs))
        self._runs, self._events, self._letters, self._flows, self._size = [], [], [], [], 0

    def _note(self, dump: Dump, fate: Fate) -> None:
        report = self.report
        if fate.outcome == "restored":
            report.restored += 1
        elif fate.outcome == "known":
            report.known += 1
        else:
            why = _REFUSALS[fate.outcome].format(key=dump.run.key, other=fate.other)
            report.refused.append(RefusedRun(id=fate.run_id, why=f"run {fate.run_id} {why}"))
        if not dump.run.state.is_end and (pause := export_pause(dump.audit)) is not None:
            self._pauses.add(pause)

    def _restoration(
        self,
        *,
        runs: Sequence[Dump] = (),
        events: Sequence[KeptEvent] = (),
        letters: Sequence[DeadLetter] = (),
        flows: Sequence[FlowDefinition] = (),
        is_last: bool = False,
    ) -> Restoration:
        header = self._reading.header
        assert header is not None
        return Restoration(
            export_id=header.export_id,
            last_event=max([header.last_event, *map(_last_event, runs)]),
            runs=tuple(runs),
            events=tuple(events),
            letters=tuple(letters),
            flows=tuple(flows),
            is_last=is_last,
        )

    async def _resume(self) -> None:
        """Resume the runs of this file that exports have paused, even if an earlier import brought them."""
        async for page in run_pages(self._store, Query(states=frozenset({RunState.PAUSED}))):
            for some in _in_parts(details.run.id for details in page):
                await asyncio.gather(*map(self._resume_one, some))

    async def _resume_one(self, run_id: str) -> None:
        pause = export_pause(await self._store.audit(run_id))
        if pause not in self._pauses or pause is None:
            return
        try:
            is_resumed = await self._store.apply(Resume(run_id=run_id, id=IMPORT + pause, by=self._by))
        except RunNotFound:
            return
        self.report.resumed += bool(is_resumed)
        self._progress("resumed", 1)


class FileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of an export file: header, footer, and number of runs by state."""

    header: export_format.Header
    footer: export_format.Footer
    states: dict[str, int]


async def summary_of(source: Lines) -> FileSummary:
    """Read a file to its end without importing anything. Refuses an incomplete file."""
    reading, states = export_format.ExportReader(), Counter[str]()
    async for text in _each(source):
        if isinstance(line := reading.read(text), export_format.RunLine):
            states[line.dump.run.state.value] += 1
    footer = reading.end()
    assert reading.header is not None
    return FileSummary(header=reading.header, footer=footer, states=dict(states))


async def _each(source: Lines) -> AsyncIterator[str | bytes]:
    if isinstance(source, AsyncIterable):
        async for line in source:
            yield line
    else:
        for line in source:
            yield line


def _last_event(dump: Dump) -> int:
    """Return the highest number of an event in a run's inbox. It may be newer than the header."""
    numbers = [int(arrival.ref or 0) for arrival in dump.inbox if arrival.kind is WaitKind.EVENT]
    return max(numbers, default=0)


async def import_lines(session: Session, lines: Lines, *, by: str, progress: ProgressCallback | None) -> ImportReport:
    """Import the lines of an export."""
    actor = check_actor(by)
    await session.open()
    return await Import(session.store, progress or _say_nothing, by=actor).take(lines)


def _say_nothing(_what: str, _count: int) -> None:
    """Ignore progress, if the caller passed no callback."""
