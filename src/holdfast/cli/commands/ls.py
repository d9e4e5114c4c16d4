"""`holdfast ls`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import Refusal
from holdfast.cli.filters import RunFilter, filter_options, parse_filter, words_of_options
from holdfast.cli.lookup import find_run, store_now
from holdfast.cli.output import Output, cleaned, shortened
from holdfast.cli.session import in_session
from holdfast.cli.summary import about, age_word, short_ids, state_cell, state_word, type_word
from holdfast.cli.table import Cell, Table
from holdfast.engine.info import RunInfo

_WATCH_SECONDS = 1.0
_KEY_LIMIT = 24


@holdfast_command(
    "ls",
    "holdfast ls",
    "holdfast ls state:failed type:billing.* since:2h",
    "holdfast ls --tag shop=x --watch",
    "holdfast ls --limit 100 --after 01a1e4ff-c428",
    "holdfast ls state:suspended -o jsonl | jq -r .id",
)
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@filter_options
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of runs.")
@click.option(
    "--after", metavar="RUN", shell_complete=completing.runs, help="The next page: runs that follow this run."
)
@click.option("--watch", is_flag=True, help="Refresh until ^C. As JSON, print one line for each change.")
def command(out: Output, words: Sequence[str], limit: int, after: str | None, *, watch: bool, **options: Any) -> None:
    """List runs, newest first.

    A FILTER is state:failed, type:billing.*, tag.shop:x, key:order-17, parent:ID, since:2h, until:2030-01-31 or
    deleted:true; the options mean the same. A run must match all filters; several states mean any of them.
    """
    chosen = parse_filter([*words, *words_of_options(options)])
    if watch and after is not None:
        raise Refusal("--watch shows the newest runs as they change, so it does not work with --after; remove one")

    async def work(hf: Holdfast) -> None:
        parent = None if chosen.parent_id is None else await find_run(hf, chosen.parent_id)
        wanted = replace(chosen, parent_id=parent)
        if watch:
            await _watch(hf, out, wanted, limit)
        else:
            # The lookup by the beginning of an id does not find deleted runs, so they need the whole id.
            last = after if after is None or chosen.deleted else await find_run(hf, after)
            _write(out, await _read(hf, wanted, limit, last), wanted, limit)

    in_session(out.settings, work)


class _Listing:
    """Runs and workers, read at one moment."""

    def __init__(self, runs: Sequence[RunInfo], workers: dict[str, str], now: datetime) -> None:
        self.runs = runs
        self.workers = workers
        self.now = now


async def _read(hf: Holdfast, chosen: RunFilter, limit: int, after: str | None = None) -> _Listing:
    runs = [info async for info in hf.list(**chosen.options(), limit=limit, after=after)]
    workers = {worker.id: worker.name for worker in await session_of(hf).store.workers()}
    return _Listing(runs, workers, await store_now(hf))


def _write(out: Output, listing: _Listing, chosen: RunFilter, limit: int) -> None:
    if out.is_json:
        out.items(listing.runs)
        return
    out.table(_table(listing, is_short=out.is_rich))
    if not listing.runs:
        out.talk("no runs yet" if chosen.is_empty else "no run matches")
    elif len(listing.runs) == limit:
        out.talk(f"there may be more: --limit N shows more runs, --after {listing.runs[-1].id} shows the next {limit}")


def _table(listing: _Listing, *, is_short: bool) -> Table:
    ids = [info.id for info in listing.runs]
    names = short_ids(ids) if is_short else {id: id for id in ids}
    rows: list[dict[str, Cell]] = [
        {
            "id": names[info.id],
            "state": state_cell(info.state),
            "type": type_word(info.type),
            "key": shortened(cleaned(info.key or ""), _KEY_LIMIT) if is_short else cleaned(info.key or ""),
            "created": (age_word(info.created_at, listing.now), "dim"),
            "about": about(info, listing.now, listing.workers),
        }
        for info in listing.runs
    ]
    return Table.of(rows, cut="about").without_empty_columns()


async def _watch(hf: Holdfast, out: Output, chosen: RunFilter, limit: int) -> None:
    """Poll the runs: on a terminal refresh a table, elsewhere write a line for each changed run."""
    listing = await _read(hf, chosen, limit)
    if out.is_rich:
        with out.terminal.live(lambda: _table(listing, is_short=True)) as refresh:
            while True:
                await asyncio.sleep(_WATCH_SECONDS)
                listing = await _read(hf, chosen, limit)
                refresh()
    known: dict[str, RunInfo] = {}
    while True:
        for info in reversed(listing.runs):
            if known.get(info.id) != info:
                _write_change(out, info, listing)
        known = {info.id: info for info in listing.runs}
        await asyncio.sleep(_WATCH_SECONDS)
        listing = await _read(hf, chosen, limit)


def _write_change(out: Output, info: RunInfo, listing: _Listing) -> None:
    if out.is_json:
        out.event(info)
    else:
        what = about(info, listing.now, listing.workers)
        out.line(f"{info.id}  {state_word(info.state)}  {type_word(info.type)}  {what}")
