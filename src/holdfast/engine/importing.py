"""Importing: reads the lines of an export into a store. Runs that the export paused are resumed after the last line.

An import is safe to repeat. Runs that exist already do not change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence

import msgspec

from holdfast.core import export_format
from holdfast.core.commands import ChangeTypes, Resume, SetTopics
from holdfast.core.errors import InvalidRequest, RunNotFound
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.model import DeadLetter, Schedule, WaitKind
from holdfast.core.ports import Store
from holdfast.core.questions import ListTopics, ListTypes, Query
from holdfast.core.states import RunState
from holdfast.core.transfer import IMPORT, Dump, Fate, KeptEvent, Restoration, export_pause, is_ruled, ruling
from holdfast.engine.capabilities import transfer_of
from holdfast.engine.export import RUNS_AT_ONCE, ProgressCallback
from holdfast.engine.paging import run_pages

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
            ids = [details.run.id for details in page]
            for start in range(0, len(ids), RUNS_AT_ONCE):
                await asyncio.gather(*map(self._resume_one, ids[start : start + RUNS_AT_ONCE]))

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
