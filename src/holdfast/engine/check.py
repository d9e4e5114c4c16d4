"""The check: replays the live runs of a store against the code that is registered here. It only reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Sequence

import msgspec

from holdfast.core.errors import Unreadable
from holdfast.core.model import Entry, Run
from holdfast.core.ports import Reader
from holdfast.core.questions import PAGE_LIMIT, Details, ListFlows, Query
from holdfast.core.states import LIVE, RunState
from holdfast.engine.lists import listed, run_pages
from holdfast.engine.session import Session
from holdfast.runner.dry_run import DryRun, Fit, dry_run
from holdfast.runner.registry import Registry

FLOW_FITS = "a flow executes the program with which it began, which no deploy changes"
"""The summary of a live flow: there is no code that could diverge."""

_PAGE = min(200, PAGE_LIMIT)
_LOOKS = 5


class RunCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict for one live run: says if the registered code fits it. `id`, `type`, `state`, `key` are of the run.

    If the code diverges, or that is undecided, `recorded` is the operation that the history has, and `requested` is the
    one that the code asks for instead.
    """

    id: str
    type: str
    state: RunState
    key: str | None
    fit: Fit
    """The verdict."""
    summary: str
    """The reason, in one line."""
    report: str
    """The reason, in full."""
    recorded: str | None = None
    requested: str | None = None
    hints: tuple[str, ...] = ()
    """Lines to add to the code, one of which may let runs like this one continue."""

    @property
    def is_good(self) -> bool:
        """True if the code fits, or if the type is not registered here, so that nothing is known."""
        return self.fit.is_good or self.fit is Fit.UNKNOWN


async def check_runs(session: Session, *, type: str | None = None, limit: int | None = None) -> AsyncIterator[RunCheck]:
    """Yield the result of a dry run for every live run, newest first."""
    store, registry = await session.opened_store(), session.registry
    flows = {one.type async for one in listed(store, ListFlows(type=type))}
    async for page in run_pages(store, Query(states=LIVE, type=type), limit, _PAGE):
        for details in page:
            try:
                found = await _check(store, registry, details, flows)
            except Unreadable as error:
                found = _check_of(details.run, DryRun(Fit.REFUSES, str(error)))
            if found is not None:
                yield found


async def _check(store: Reader, registry: Registry, details: Details, flows: Container[str] = ()) -> RunCheck | None:
    """Return the result of a dry run of a run. None if the run has ended meanwhile."""
    run = details.run
    if details.unreadable is not None:
        raise Unreadable(f"the row of the run cannot be read: {details.unreadable}")
    definition = registry.get(run.type)
    if definition is None and run.type in flows:
        return _check_of(run, DryRun(Fit.FITS, FLOW_FITS))
    if definition is None:
        return _check_of(run, dry_run(None, run, ()))
    found = dry_run(definition, run, await _history(store, run))
    for _ in range(_LOOKS):
        if found.fit.is_good:
            break
        # A worker may have written between the reads of the run and of its history. Then the two do not fit together.
        again = await store.get(run.id)
        if again is None or again.run.state.is_end:
            return None
        is_steady, run = _is_same(again.run, run), again.run
        if is_steady:
            break
        found = dry_run(definition, run, await _history(store, run))
    return _check_of(run, found)


async def _history(store: Reader, run: Run) -> Sequence[Entry]:
    has_begun = run.first_claimed_at is not None or run.token > 0
    return await store.history(run.id) if has_begun else ()


def _is_same(run: Run, other: Run) -> bool:
    """True if two reads of a run belong to the same history, even if it grew in between."""
    return (run.token, run.generation, run.rollback) == (other.token, other.generation, other.rollback)


def _check_of(run: Run, found: DryRun) -> RunCheck:
    misfit = found.misfit
    return RunCheck(
        id=run.id,
        type=run.type,
        state=run.state,
        key=run.key,
        fit=found.fit,
        summary=found.summary,
        report=found.report,
        recorded=None if misfit is None else misfit.recorded,
        requested=None if misfit is None else misfit.requested,
        hints=() if misfit is None else misfit.hints,
    )
