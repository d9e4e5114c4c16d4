"""Lists of runs: a page is a range of the smallest index that fits the filter, and the filter decides on each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from holdfast.core.intent import matches_type
from holdfast.core.questions import Details, Query
from holdfast.stores.kv import names, reads
from holdfast.stores.kv.driver import Driver, Fields, Range, Size
from holdfast.stores.kv.run_fields import DELETED

LONGEST_CHUNK = 500


async def list_runs(driver: Driver, query: Query) -> list[Details]:
    """Return the runs that a query admits, newest first."""
    if query.key is not None:
        (found,) = await reads.partitions(driver, [Fields(names.key(query.key), ("id",))])
        holder = found.fields.get("id")
        details = [] if holder is None else await reads.details_of(driver, [holder.decode()])
        return [one for one in details if query.admits(one.run)][: query.limit]
    indexes = await _indexes(driver, query)
    chosen: list[Details] = []
    pages = _Pages(driver, indexes, query)
    while len(chosen) < query.limit and (run_ids := await pages.next(query.limit - len(chosen))):
        details = await reads.details_of(driver, run_ids)
        chosen += [one for one in details if query.admits(one.run)]
    return chosen[: query.limit]


async def _indexes(driver: Driver, query: Query) -> list[str]:
    """Return the indexes whose union has all runs that a query admits: the choice with the fewest members."""
    choices: list[list[str]] = [[names.tagged(name, value)] for name, value in query.tags.items()]
    if query.parent_id is not None:
        choices.append([names.kids_index(query.parent_id)])
    if query.states or query.type is not None or query.is_deleted:
        choices.append(await _by_state(driver, query))
    if not choices:
        return [names.ALL]
    if len(choices) == 1:
        return choices[0]
    sizes = await reads.sizes(driver, [Size(index) for some in choices for index in some])
    totals: list[int] = []
    begin = 0
    for some in choices:
        totals.append(sum(sizes[begin : begin + len(some)]))
        begin += len(some)
    return choices[totals.index(min(totals))]


async def _by_state(driver: Driver, query: Query) -> list[str]:
    known = [name.partition(":")[::2] for name in await reads.members_of(driver, names.STATES)]
    wanted = {DELETED} if query.is_deleted else {state.value for state in query.states}
    return [
        names.by_state(state, type)
        for state, type in known
        if (state in wanted if wanted else state != DELETED) and (query.type is None or matches_type(type, query.type))
    ]


class _Pages:
    """Reads the members of several indexes as one, from the newest on."""

    def __init__(self, driver: Driver, indexes: Sequence[str], query: Query) -> None:
        self._driver = driver
        self._indexes = list(indexes)
        high = ""
        if query.before is not None:
            high = names.time_text(query.before[0]) + query.before[1]
        if query.created_until is not None:
            until = names.time_text(query.created_until)
            high = min(high, until) if high else until
        self._high = high
        self._low = names.time_text(query.created_from) if query.created_from is not None else ""
        self._is_over = not indexes

    async def next(self, wanted: int) -> list[str]:
        """Return the ids of the next runs; an empty list at the end."""
        if self._is_over:
            return []
        limit = max(1, min(LONGEST_CHUNK, wanted))
        ranges = [Range(index, self._low, self._high, limit, is_reverse=True) for index in self._indexes]
        answers = cast("list[list[str]]", await reads.answers(self._driver, ranges))
        merged = sorted({member for some in answers for member in some}, reverse=True)[:limit]
        if len(merged) < limit:
            self._is_over = True
        if merged:
            self._high = merged[-1]
        return [member[names.TIME_DIGITS :] for member in merged]
