"""Listing runs, newest first."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec.structs import replace

from holdfast.core.errors import InvalidRequest
from holdfast.engine.async_list import AsyncList
from holdfast.engine.info import RunInfo
from holdfast.engine.paging import run_pages
from holdfast.engine.queries import Filter, checked_filter, place_of, query_of
from holdfast.engine.session import Session


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
