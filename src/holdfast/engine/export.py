"""An export: writes the runs of a store as lines. Live runs are paused first, and stay paused in this store.

It keeps at most one page of runs in memory. With a filter, it also keeps the ids of the chosen live runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from msgspec.structs import replace

from holdfast.core import export_format, kinship
from holdfast.core.codec import json_flaw
from holdfast.core.commands import Pause
from holdfast.core.errors import RunNotFound, Unreadable
from holdfast.core.ids import new_id
from holdfast.core.model import Run, Value
from holdfast.core.ports import Store
from holdfast.core.questions import Details, ListDeadLetters, ListFlows, ListSchedules, ListTopics, ListTypes, Query
from holdfast.core.rules import is_due
from holdfast.core.states import ENDS, LIVE, RunState
from holdfast.core.transfer import EXPORT, KeptEvent, is_at_rest, is_ruled, values_of
from holdfast.core.unreadable import joined
from holdfast.engine.capabilities import transfer_of
from holdfast.engine.info import RunInfo
from holdfast.engine.paging import flow_pages, letter_pages, pages, run_pages, schedule_pages
from holdfast.engine.queries import Filter, query_of
from holdfast.engine.session import Session

RUNS_AT_ONCE = 50
FLOWS_AT_ONCE = 50
LOOK_SECONDS = 0.2
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
        store_kind: str,
        version: str,
        is_live: bool,
        timeout_seconds: float,
        reason: str,
        by: str,
        progress: ProgressCallback,
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
        self._chosen = chosen
        self._store_kind = store_kind
        self._version = version
        self._is_live = is_live
        self._timeout_seconds = timeout_seconds
        self._reason = reason
        self._by = by
        self._progress = progress
        self._is_filtered = any(chosen.values())
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
            version=self._version,
            store=self._store_kind,
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
                await asyncio.sleep(min(LOOK_SECONDS, max(0.0, deadline - loop.time())))
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
    while kinship.is_child(run) and (parent := await store.get(run.parent_id or "")) is not None:
        if parent.run.state.is_end:
            break
        run = parent.run
    family = [run]
    for member in family:
        async for page in run_pages(store, Query(parent_id=member.id, states=LIVE)):
            family += [details.run for details in page if kinship.is_child(details.run)]
    return family


async def _before_runs(store: Store, *, has_rules: bool) -> AsyncIterator[export_format.Content]:
    """Yield the registrations of flows, and then the rules of topics and types.

    Flows come first, so that an import that refuses one has written nothing.
    """
    async for flows in flow_pages(store, ListFlows(with_texts=True), page_size=FLOWS_AT_ONCE):
        for flow in flows:
            yield export_format.FlowLine(flow=flow)
    if has_rules:
        async for rule in _rules(store):
            yield rule


async def _rules(store: Store) -> AsyncIterator[export_format.Content]:
    """Yield the rules of topics and types."""
    for topic in await store.catalog(ListTopics()):
        yield export_format.TopicLine(topic=topic)
    for rule in await store.catalog(ListTypes()):
        if is_ruled(rule):
            yield export_format.TypeLine(type=rule)


async def _rest(store: Store) -> AsyncIterator[export_format.Content]:
    """Yield what belongs to no run: dead letters, and then schedules.

    Schedules come last, so that they include the runs that they started meanwhile.
    """
    async for letters in letter_pages(store, ListDeadLetters()):
        for letter in letters:
            yield export_format.LetterLine(letter=letter)
    async for schedules in schedule_pages(store, ListSchedules()):
        for schedule in schedules:
            yield export_format.ScheduleLine(schedule=schedule)


def _in_parts(run_ids: Iterable[str]) -> Iterable[Sequence[str]]:
    chosen = list(run_ids)
    for start in range(0, len(chosen), RUNS_AT_ONCE):
        yield chosen[start : start + RUNS_AT_ONCE]
