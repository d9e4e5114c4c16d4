"""A selection: runs that a filter or a list of ids chooses, to be changed together.

Each run is changed by its own control, one after the other. If a run cannot be changed, the report has the reason, and
the other runs are changed all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec
from msgspec.structs import replace

from holdfast.core import recovery, revision, rules
from holdfast.core.clock import Micros
from holdfast.core.errors import InvalidRequest, KeyConflict, RunBusy, RunNotFound
from holdfast.core.intent import check_actor, check_reason, check_string
from holdfast.core.model import Run
from holdfast.core.questions import Details
from holdfast.core.states import RunState
from holdfast.engine.controls import Controls
from holdfast.engine.flaws import Flaws
from holdfast.engine.info import RunInfo
from holdfast.engine.paging import run_pages
from holdfast.engine.planned_rewind import planned_rewind
from holdfast.engine.queries import Filter, checked_filter, query_of
from holdfast.engine.session import Session

Progress = Callable[[int, int], object]
"""Callback after each run. It gets the number of runs done and the number of all runs."""


class SelectedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one run of a selection. A run that does not exist has only an `id`."""

    id: str
    """The id of the run."""
    type: str | None = None
    """Its type."""
    state: RunState | None = None
    """Its state before the change."""
    created_at: datetime | None = None
    """The time of its start."""
    why: str = ""
    """The reason why it was skipped. Empty if it was changed, or would be in a dry run."""
    is_refused: bool = False
    """True if the change was not allowed, for example because a worker holds the run.

    False if there was nothing to change.
    """


class SelectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for all runs of a selection."""

    changed: int
    """Number of runs that were changed, or would be in a dry run."""
    skipped: int
    """Number of runs that were not changed."""
    reasons: dict[str, int]
    """Number of skipped runs for each reason."""
    runs: Sequence[SelectedRun]
    """Every run of the selection, with its own reason."""
    is_dry_run: bool = False
    """True if this is the report of a dry run, which changed nothing."""


async def _nothing(_run_id: str) -> None:
    """Do nothing, for a verb whose dry run needs only the run itself."""


@dataclass(frozen=True)
class _Verb:
    """A verb of a selection with its arguments.

    `expect` returns True if a run, as it was read, would change. It raises `RunBusy` if the run must not change. For a
    dry run, `rehearse` raises other errors of the change. `unchanged` returns the reason why a run does not change.
    """

    name: str
    act: Callable[[str], Awaitable[bool]]
    expect: Callable[[Details, Micros], bool]
    unchanged: Callable[[Run], str]
    rehearse: Callable[[str], Awaitable[None]] = _nothing


def _unless_held(*, force: bool) -> Callable[[Details, Micros], bool]:
    """Return the expectation of a verb that changes every run, but refuses runs that a worker holds unless `force`."""

    def expect(details: Details, _now: Micros) -> bool:
        revision.check_free(details.run, is_forced=force)
        return True

    return expect


class Selection:
    """The runs that `hf.runs(…)` selected, to be changed together.

    Each run is changed by itself. A run that cannot be changed is skipped, and the report says why. Every verb takes:

    - `by`: the name of who asks, which the audit of each run keeps
    - `dry_run=True`: change nothing, and report what would be changed
    - `progress`: a function that is called after each run with the number of runs done and the number of all
    """

    def __init__(
        self, session: Session, filter: Filter, *, ids: Iterable[str] | None = None, everything: bool = False
    ) -> None:
        filter = checked_filter(filter)
        self._filter = filter
        self._is_narrow = any(map(bool, filter.values()))
        if ids is not None and (isinstance(ids, str) or not isinstance(ids, Iterable)):
            raise InvalidRequest(f"hf.runs(ids={ids!r:.80}): expected a list of ids")
        self._ids = None if ids is None else list(dict.fromkeys(check_string(id, "ids") for id in ids))
        if self._ids is not None and self._is_narrow:
            raise InvalidRequest("hf.runs() takes ids=[…] or filters, not both")
        if filter.get("deleted"):
            raise InvalidRequest("hf.runs(deleted=True): deleted runs cannot be changed; hf.list lists them")
        self._session = session
        self._controls = Controls(session)
        self._everything = everything

    async def cancel(
        self,
        reason: str = "",
        *,
        force: bool = False,
        by: str = "",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> SelectionReport:
        """End the runs as cancelled. The steps of each are undone first, unless `force`."""
        check_reason(reason)

        def expect(details: Details, _now: Micros) -> bool:
            return not details.run.state.is_end and (force or details.run.rollback is None)

        def unchanged(run: Run) -> str:
            return "had ended already" if run.state.is_end else "rolls back already; force ends it without a rollback"

        act = partial(self._controls.cancel, reason=reason, force=force, by=by)
        return await self._each(_Verb("cancel", act, expect, unchanged), by, dry_run=dry_run, progress=progress)

    async def pause(
        self, reason: str = "", *, by: str = "", dry_run: bool = False, progress: Progress | None = None
    ) -> SelectionReport:
        """Stop the runs until they are resumed. Steps that execute right now are not interrupted."""
        check_reason(reason)

        def expect(details: Details, now: Micros) -> bool:
            return rules.paused(details.run, now) is not None

        def unchanged(run: Run) -> str:
            return "had ended already" if run.state.is_end else "is paused already, or about to be"

        act = partial(self._controls.pause, reason=reason, by=by)
        return await self._each(_Verb("pause", act, expect, unchanged), by, dry_run=dry_run, progress=progress)

    async def resume(self, *, by: str = "", dry_run: bool = False, progress: Progress | None = None) -> SelectionReport:
        """Let the paused runs continue."""

        def expect(details: Details, now: Micros) -> bool:
            return rules.resumed(details.run, details.waits, now) is not None

        def unchanged(run: Run) -> str:
            return "had ended already" if run.state.is_end else "is not paused"

        act = partial(self._controls.resume, by=by)
        return await self._each(_Verb("resume", act, expect, unchanged), by, dry_run=dry_run, progress=progress)

    async def wake(self, *, by: str = "", dry_run: bool = False, progress: Progress | None = None) -> SelectionReport:
        """Make suspended runs check their waits now, and retry blocked runs now. It shortens no sleep."""

        def expect(details: Details, now: Micros) -> bool:
            return rules.roused(details.run, details.waits, now) is not None

        def unchanged(run: Run) -> str:
            ended = "had ended already"
            return ended if run.state.is_end else f"is {run.state.value}, so there is nothing to wake"

        act = partial(self._controls.wake, by=by)
        return await self._each(_Verb("wake", act, expect, unchanged), by, dry_run=dry_run, progress=progress)

    async def recover(
        self, *, force: bool = False, by: str = "", dry_run: bool = False, progress: Progress | None = None
    ) -> SelectionReport:
        """Retry what failed, cancelled or blocked runs failed at. What succeeded is kept and not executed again.

        Failed children are recovered with their parent, so the selection may contain both, in any order. `force` also
        takes runs from workers that hold them.
        """

        def expect(details: Details, _now: Micros) -> bool:
            return details.run.state in recovery.RECOVERABLE

        def unchanged(run: Run) -> str:
            return f"is {run.state.value}; only a failed, cancelled or blocked run can be recovered"

        async def rehearse(run_id: str) -> None:
            store = self._session.store
            details = await store.get(run_id)
            if details is None or not details.run.state.is_end:
                return  # only an ended run can have lost its key
            key = recovery.lost_key(details.run, await store.audit(run_id))
            if key is not None and (holder := await store.get(key=key)) is not None:
                raise recovery.key_conflict(details.run, key, holder.run.id)

        act = partial(self._controls.recover, force=force, by=by)
        verb = _Verb("recover", act, expect, unchanged, rehearse)
        return await self._each(verb, by, dry_run=dry_run, progress=progress)

    async def rewind(
        self,
        location: str,
        *,
        force: bool = False,
        by: str = "",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> SelectionReport:
        """Drop the history of the runs from a location on, and continue from there, even those that had ended.

        Runs that have nothing at the location are skipped. So are runs that a worker holds, unless `force`.
        """
        check_string(location, "location")

        async def rehearse(run_id: str) -> None:
            await planned_rewind(self._session.store, run_id, location)

        act = partial(self._controls.rewind, location=location, force=force, by=by)
        verb = _Verb("rewind", act, _unless_held(force=force), lambda _: "did not change", rehearse)
        return await self._each(verb, by, dry_run=dry_run, progress=progress)

    async def delete(
        self, *, force: bool = False, by: str = "", dry_run: bool = False, progress: Progress | None = None
    ) -> SelectionReport:
        """Hide the runs at once and remove them a day later. Live runs are cancelled, and nothing is undone.

        Runs that a worker holds are skipped, unless `force`.
        """
        act = partial(self._controls.delete, force=force, by=by)
        verb = _Verb("delete", act, _unless_held(force=force), lambda _: "was deleted")
        return await self._each(verb, by, dry_run=dry_run, progress=progress)

    async def _each(self, verb: _Verb, by: str, *, dry_run: bool, progress: Progress | None) -> SelectionReport:
        check_actor(by)
        name = verb.name
        if not (self._is_narrow or self._everything or dry_run or self._ids is not None):
            raise InvalidRequest(
                f"hf.runs().{name}() would {name} every run in the store; pass a filter, such as state= or type=, "
                "or confirm with hf.runs(everything=True)"
            )
        await self._session.open()
        planned = [self._planned(verb, details, now) async for details, now in self._chosen()]
        done: list[SelectedRun] = []
        try:
            for run in planned:
                done.append(run if run.why else await self._do(verb, run, dry_run=dry_run))
                if progress is not None:
                    progress(len(done), len(planned))
        except BaseException as error:
            error.add_note(
                f"{len(done):,} of {len(planned):,} runs were done before this error; repeat {name}() for the others"
            )
            raise
        reasons = Counter(run.why.replace(run.id, "…").removeprefix("run …").lstrip(": ") for run in done if run.why)
        skipped = reasons.total()
        return SelectionReport(
            changed=len(done) - skipped, skipped=skipped, reasons=dict(reasons), runs=done, is_dry_run=dry_run
        )

    async def _chosen(self) -> AsyncIterator[tuple[Details | str, Micros]]:
        """Yield the runs, newest first, each with the store's time. For a run that does not exist, yield its id."""
        store = self._session.store
        if self._ids is not None:
            now = await store.now()
            for run_id in self._ids:
                yield await store.get(run_id) or run_id, now
            return
        async for page in run_pages(store, await query_of(store, self._filter)):
            now = await store.now()
            for details in page:
                yield details, now

    def _planned(self, verb: _Verb, details: Details | str, now: Micros) -> SelectedRun:
        """Return the expected result for a run as it was read. It keeps only the fields that the report needs."""
        if isinstance(details, str):
            return SelectedRun(id=details, why=f"there is no run {details}", is_refused=True)
        run = details.run
        if details.unreadable is not None:
            # No result can be predicted, so let the store decide. A delete, for example, may work.
            info = RunInfo.of(details)
            return SelectedRun(id=info.id, type=info.type, state=info.state, created_at=info.created_at)
        selected = SelectedRun(
            id=run.id, type=run.type, state=run.state, created_at=Flaws().moment("created_at", run.created_at)
        )
        try:
            is_changing = verb.expect(details, now)
        except RunBusy as refusal:
            return replace(selected, why=str(refusal), is_refused=True)
        return selected if is_changing else replace(selected, why=f"run {run.id} {verb.unchanged(run)}")

    async def _do(self, verb: _Verb, selected: SelectedRun, *, dry_run: bool) -> SelectedRun:
        """Change a run that is expected to change. In a dry run, check for errors instead."""
        try:
            if dry_run:
                await verb.rehearse(selected.id)
                return selected
            if await verb.act(selected.id):
                return selected
        except (InvalidRequest, KeyConflict, RunBusy, RunNotFound) as refusal:
            why = str(refusal)
            return replace(selected, why=why if selected.id in why else f"run {selected.id}: {why}", is_refused=True)
        # The run changed after it was read, by another program or by an earlier run of this selection.
        details = await self._session.store.get(selected.id)
        unchanged = verb.unchanged(details.run) if details is not None else "was deleted"
        return replace(selected, why=f"run {selected.id} {unchanged}")
