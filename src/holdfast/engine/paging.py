"""Paging: reads long lists of a store page by page, so that only one page is in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.model import DeadLetter, Schedule
from holdfast.core.ports import Reader
from holdfast.core.questions import PAGE_LIMIT, Details, ListDeadLetters, ListFlows, ListSchedules, Query

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


def letter_pages(
    store: Reader, query: ListDeadLetters, limit: int | None = None
) -> AsyncIterator[Sequence[DeadLetter]]:
    """Return the pages of all dead letters that match a query, oldest first."""

    def read(last: DeadLetter | None, size: int) -> Awaitable[Sequence[DeadLetter]]:
        after = query.after if last is None else last.number
        return store.catalog(replace(query, after=after, limit=size))

    return pages(read, limit)


def schedule_pages(store: Reader, query: ListSchedules, limit: int | None = None) -> AsyncIterator[Sequence[Schedule]]:
    """Return the pages of all schedules that match a query, by name."""

    def read(last: Schedule | None, size: int) -> Awaitable[Sequence[Schedule]]:
        after = query.after if last is None else last.name
        return store.catalog(replace(query, after=after, limit=size))

    return pages(read, limit)


def flow_pages(
    store: Reader, query: ListFlows, limit: int | None = None, page_size: int = PAGE_LIMIT
) -> AsyncIterator[Sequence[FlowDefinition]]:
    """Return the pages of all registrations of flows that match a query, by type and time."""

    def read(last: FlowDefinition | None, size: int) -> Awaitable[Sequence[FlowDefinition]]:
        after = query.after if last is None else (last.type, last.registered_at)
        return store.catalog(replace(query, after=after, limit=size))

    return pages(read, limit, page_size)
