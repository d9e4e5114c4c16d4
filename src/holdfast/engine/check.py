"""The check: whether the code that is registered here fits the runs that live in a store. It only reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from holdfast.core.errors import Unreadable
from holdfast.core.model import Entry, Run
from holdfast.core.ports import Reader
from holdfast.core.questions import PAGE_LIMIT, Details, Query
from holdfast.core.states import LIVE, RunState
from holdfast.engine.paging import run_pages
from holdfast.engine.session import Session
from holdfast.runner.dry_run import DryRun, Fit, dry_run
from holdfast.runner.registry import Registry

_PAGE = min(200, PAGE_LIMIT)
_LOOKS = 5


class RunCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How the registered code fits one live run. `id`, `type`, `state` and `key` are those of the run.

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
        """Whether the code fits. True also for a type that is not registered here, of which nothing is known."""
        return self.fit.is_good or self.fit is Fit.UNKNOWN


async def check_runs(session: Session, *, type: str | None = None, limit: int | None = None) -> AsyncIterator[RunCheck]:
    """Make a dry run of every live run, newest first."""
    store, registry = await session.opened_store(), session.registry
    async for page in run_pages(store, Query(states=LIVE, type=type), limit, _PAGE):
        for details in page:
            try:
                found = await _check(store, registry, details)
            except Unreadable as error:
                found = _told(details.run, DryRun(Fit.REFUSES, str(error)))
            if found is not None:
                yield found


async def _check(store: Reader, registry: Registry, details: Details) -> RunCheck | None:
    """What a dry run of a run shows; None if it has ended meanwhile."""
    run = details.run
    if details.unreadable is not None:
        raise Unreadable(f"its row cannot be read: {details.unreadable}")
    definition = registry.get(run.type)
    if definition is None:
        return _told(run, dry_run(None, run, ()))
    found = dry_run(definition, run, await _history(store, run))
    for _ in range(_LOOKS):
        if found.fit.is_good:
            break
        # Its worker may have written between the two reads, and then one of them is older than the other.
        again = await store.get(run.id)
        if again is None or again.run.state.is_end:
            return None
        is_steady, run = _is_same(again.run, run), again.run
        if is_steady:
            break
        found = dry_run(definition, run, await _history(store, run))
    return _told(run, found)


async def _history(store: Reader, run: Run) -> Sequence[Entry]:
    has_begun = run.first_claimed_at is not None or run.token > 0
    return await store.history(run.id) if has_begun else ()


def _is_same(run: Run, other: Run) -> bool:
    """Whether what was read of a run twice goes with the same history, be it longer the second time."""
    return (run.token, run.generation, run.rollback) == (other.token, other.generation, other.rollback)


def _told(run: Run, found: DryRun) -> RunCheck:
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
