"""Lists: filters of users, pages of the store, and the results of every `list` method."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypedDict, TypeVar

from msgspec.structs import replace

from holdfast.core.clock import Micros, instant, micros
from holdfast.core.errors import InvalidRequest, RunNotFound, refuse_unknown
from holdfast.core.intent import check_string, check_tags
from holdfast.core.ports import Reader, Store
from holdfast.core.questions import PAGE_LIMIT, Details, Pages, Query
from holdfast.core.states import RunState
from holdfast.engine.info import RunInfo
from holdfast.engine.session import Session, refuse_workflow_code


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
    """Started at or after this moment. A timedelta counts back from now."""
    until: datetime | None
    """Started before this moment."""
    deleted: bool
    """True for only runs that were deleted and are not removed yet. Only for `hf.list`."""


def checked_filter(chosen: Filter) -> Filter:
    """Return the filter with decoded states. Refuses an unknown condition."""
    if chosen.keys() - Filter.__annotations__.keys():
        refuse_unknown("filter", chosen, Filter.__annotations__, of="runs")
    state = chosen.get("state")
    return chosen if state is None else {**chosen, "state": _states(state)}


async def query_of(store: Store, chosen: Filter) -> Query:
    """Return the query for a filter."""
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
    """Return the position of a run in a list of runs. The next page follows it."""
    if isinstance(run, RunInfo):
        return instant(run.created_at), run.id
    check_string(run, "after")
    found = await store.list(Query(id_prefix=run, is_deleted=is_deleted, limit=1))
    if not found or found[0].run.id != run:
        raise RunNotFound(f"after={run!r}: no run with this id is listed here; it may have been removed")
    return found[0].run.created_at, run


def _text(value: str | None, what: str) -> str | None:
    return None if value is None else check_string(value, what)


async def _since(store: Store, since: datetime | timedelta | None) -> Micros | None:
    if isinstance(since, timedelta):
        return await store.now() - micros(since, "since")
    if since is None:
        return None
    if not isinstance(since, datetime):
        raise InvalidRequest(f"since={since!r}: expected a datetime, or a timedelta that counts back from now")
    return instant(since)


def _states(state: RunState | str | Iterable[RunState | str] | None) -> frozenset[RunState]:
    if state is None:
        return frozenset()
    if not isinstance(state, Iterable):
        raise InvalidRequest(
            f"state={state!r}: expected a state or a list of them; the states are {', '.join(RunState)}"
        )
    names = [state] if isinstance(state, str) else list(state)
    if not names:
        raise InvalidRequest(f"state={state!r:.80} names no state; name at least one, or leave it out for any")
    known = [one.value for one in RunState]
    if unknown := [str(name) for name in names if name not in known]:
        refuse_unknown("state", unknown, known)
    return frozenset(map(RunState, names))


T = TypeVar("T")


async def pages(
    read: Callable[[T | None, int], Awaitable[Sequence[T]]], limit: int | None = None, page_size: int = PAGE_LIMIT
) -> AsyncIterator[Sequence[T]]:
    """Yield pages. `read` gets the last item of the previous page and the size of the next one."""
    last, left = None, limit
    while left is None or left > 0:
        size = page_size if left is None else min(left, page_size)
        page = await read(last, size)
        yield page
        if len(page) < size:
            return
        last = page[-1]
        left = None if left is None else left - size


def run_pages(
    store: Reader, query: Query, limit: int | None = None, page_size: int = PAGE_LIMIT
) -> AsyncIterator[Sequence[Details]]:
    """Return the pages of all runs that match a query, newest first."""

    def read(last: Details | None, size: int) -> Awaitable[Sequence[Details]]:
        before = query.before if last is None else (last.run.created_at, last.run.id)
        return store.list(replace(query, before=before, limit=size))

    return pages(read, limit, page_size)


async def listed(
    store: Reader, question: Pages[T], limit: int | None = None, page_size: int = PAGE_LIMIT
) -> AsyncIterator[T]:
    """Yield the things that a question lists, page by page."""

    def read(last: T | None, size: int) -> Awaitable[Sequence[T]]:
        return store.catalog(replace(question if last is None else question.next_page(last), limit=size))

    async for page in pages(read, limit, page_size):
        for one in page:
            yield one


class AsyncList(AsyncIterator[T], Generic[T]):
    """The result of every `list` method: iterate over it with `async for`, or `await` it to get a list.

        async for info in hf.list(state="failed"): ...
        failed = await hf.list(state="failed")

    Iterating reads from the store page by page. Use each one once.
    """

    def __init__(self, items: AsyncIterator[T]) -> None:
        refuse_workflow_code()  # in the constructor, because the stack still shows the call that made the list
        self._items = items

    @classmethod
    def of(cls, read: Callable[[], Awaitable[Sequence[T]]]) -> AsyncList[T]:
        """Make a list that reads all its items when the first one is requested."""

        async def items() -> AsyncIterator[T]:
            for item in await read():
                yield item

        return cls(items())

    async def __anext__(self) -> T:
        return await anext(self._items)

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._all().__await__()

    async def _all(self) -> list[T]:
        return [item async for item in self._items]


def list_runs(
    session: Session, filter: Filter, *, limit: int | None, after: RunInfo | str | None
) -> AsyncList[RunInfo]:
    """Return the runs that match a filter. A wrong filter raises at once, not when the first run is read."""
    filter = checked_filter(filter)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise InvalidRequest(f"limit={limit!r}: expected a whole number of runs, or None for all")
    return AsyncList(_each(session, filter, limit, after))


async def _each(
    session: Session, filter: Filter, limit: int | None, after: RunInfo | str | None
) -> AsyncIterator[RunInfo]:
    store = await session.opened_store()
    query = await query_of(store, filter)
    if after is not None:
        query = replace(query, before=await place_of(store, after, is_deleted=filter.get("deleted", False)))
    async for page in run_pages(store, query, limit):
        for details in page:
            yield RunInfo.of(details)
