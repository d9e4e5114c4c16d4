"""Queries: which runs a program or person means, as a store is asked for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypedDict

from holdfast.core.clock import Micros, instant, micros
from holdfast.core.errors import InvalidRequest, RunNotFound
from holdfast.core.intent import check_string, check_tags
from holdfast.core.ports import Store
from holdfast.core.questions import Query
from holdfast.core.states import RunState
from holdfast.core.suggestion import refuse_unknown
from holdfast.engine.info import RunInfo


class Filter(TypedDict, total=False):
    """The conditions on runs: keywords of `hf.list`, `hf.runs` and `hf.export`. All of them must hold."""

    state: RunState | str | Iterable[RunState | str] | None
    """A `RunState` or its name, or several of them: `state="failed"`, `state=["pending", "blocked"]`."""
    type: str | None
    """The name of a type, or a prefix such as `shop.*`."""
    key: str | None
    """The key of the run."""
    tags: Mapping[str, str] | None
    """Tags that the run has, with these values."""
    parent_id: str | None
    """The id of the parent: selects its children."""
    since: datetime | timedelta | None
    """Started at or after this moment; a timedelta is how long ago."""
    until: datetime | None
    """Started before this moment."""
    deleted: bool
    """True: only runs that were deleted and are not removed yet. Only for `hf.list`."""


def checked_filter(chosen: Filter) -> Filter:
    """The filter, with its states read. Refuses a condition that runs cannot be chosen by."""
    if chosen.keys() - Filter.__annotations__.keys():
        refuse_unknown("filter", chosen, Filter.__annotations__, of="runs")
    state = chosen.get("state")
    return chosen if state is None else {**chosen, "state": _states(state)}


async def query_of(store: Store, chosen: Filter) -> Query:
    """The query that a filter stands for."""
    until = chosen.get("until")
    return Query(
        states=_states(chosen.get("state")),
        type=_text(chosen.get("type"), "type"),
        key=_text(chosen.get("key"), "key"),
        tags=check_tags(chosen.get("tags")),
        parent_id=_text(chosen.get("parent_id"), "parent_id"),
        created_from=await _since(store, chosen.get("since")),
        created_until=None if until is None else instant(until, "until"),
        is_deleted=chosen.get("deleted", False),
    )


async def place_of(store: Store, run: RunInfo | str, *, is_deleted: bool) -> tuple[Micros, str]:
    """Where a run stands in a list of runs: what follows it is the next page."""
    if isinstance(run, RunInfo):
        return instant(run.created_at), run.id
    check_string(run, "after")
    found = await store.list(Query(id_prefix=run, is_deleted=is_deleted, limit=1))
    if not found or found[0].run.id != run:
        raise RunNotFound(f"after={run!r}: no run of this id is listed here; it may be gone by now")
    return found[0].run.created_at, run


def _text(value: str | None, what: str) -> str | None:
    return None if value is None else check_string(value, what)


async def _since(store: Store, since: datetime | timedelta | None) -> Micros | None:
    if isinstance(since, timedelta):
        return await store.now() - micros(since, "since")
    if since is None:
        return None
    if not isinstance(since, datetime):
        raise InvalidRequest(f"since={since!r}: it is a datetime, or a timedelta that says how long ago")
    return instant(since)


def _states(state: RunState | str | Iterable[RunState | str] | None) -> frozenset[RunState]:
    if state is None:
        return frozenset()
    if not isinstance(state, Iterable):
        raise InvalidRequest(f"state={state!r}: it is a state, or a list of them; the states are {', '.join(RunState)}")
    names = [state] if isinstance(state, str) else list(state)
    if not names:
        raise InvalidRequest(f"state={state!r:.80} names no state; name at least one, or leave it out for any")
    known = [one.value for one in RunState]
    if unknown := [str(name) for name in names if name not in known]:
        refuse_unknown("state", unknown, known)
    return frozenset(map(RunState, names))
