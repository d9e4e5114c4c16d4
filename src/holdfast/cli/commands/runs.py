"""Commands that show runs: `ls`, `show`, `watch`, `result`, `explain`, `history`, `audit` and `messages`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.command import command, store_command
from holdfast.cli.completing import run_argument
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.filters import chosen_filter, filter_options
from holdfast.cli.follow import exit_code, finish, follow, outcome, read, show_progress, wait_for_end
from holdfast.cli.option import LENGTH
from holdfast.cli.output import Cell, Output, Table, ago, cleaned, preview, shortened, spoken, stamp
from holdfast.cli.payloads import check_timeout
from holdfast.cli.session import actor, find_run, in_session, store_now
from holdfast.cli.summary import about, age_word, short_ids, state_cell, state_word, type_word
from holdfast.cli.view import GLYPHS, divergence_lines, program_lines, run_lines
from holdfast.core.audit import BY
from holdfast.core.model import EntryKind
from holdfast.core.states import RunState
from holdfast.engine.info import AuditInfo, EntryInfo, MessageInfo, RunInfo
from holdfast.engine.lists import Filter

_WATCH_SECONDS = 1.0
_KEY_LIMIT = 24

# Many runs


@command(
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
def ls(out: Output, words: Sequence[str], limit: int, after: str | None, *, watch: bool, **options: Any) -> None:
    """List runs, newest first.

    A FILTER is state:failed, type:billing.*, tag.shop:x, key:order-17, parent:ID, since:2h, until:2030-01-31 or
    deleted:true; the options mean the same. A run must match all filters; several states mean any of them.
    """
    chosen = chosen_filter(words, options)
    if watch and after is not None:
        raise Refusal("--watch shows the newest runs as they change, so it does not work with --after; remove one")

    async def work(hf: Holdfast) -> None:
        if (parent := chosen.get("parent_id")) is not None:
            chosen["parent_id"] = await find_run(hf, parent)
        if watch:
            await _watch_listing(hf, out, chosen, limit)
        else:
            # The lookup by the beginning of an id does not find deleted runs, so they need the whole id.
            last = after if after is None or chosen.get("deleted") else await find_run(hf, after)
            _write_listing(out, await _read_listing(hf, chosen, limit, last), chosen, limit)

    in_session(out.settings, work)


class _Listing(NamedTuple):
    """Runs and the names of workers, read at one moment."""

    runs: Sequence[RunInfo]
    workers: dict[str, str]
    now: datetime


async def _read_listing(hf: Holdfast, chosen: Filter, limit: int, after: str | None = None) -> _Listing:
    runs = await hf.list(**chosen, limit=limit, after=after)
    workers = {worker.id: worker.name for worker in await session_of(hf).store.workers()}
    return _Listing(runs, workers, await store_now(hf))


def _write_listing(out: Output, listing: _Listing, chosen: Filter, limit: int) -> None:
    if out.is_json:
        out.items(listing.runs)
        return
    out.table(_run_table(listing, is_short=out.is_rich))
    if not listing.runs:
        out.talk("no run matches" if chosen else "no runs yet")
    elif len(listing.runs) == limit:
        out.talk(f"there may be more: --limit N shows more runs, --after {listing.runs[-1].id} shows the next {limit}")


def _run_table(listing: _Listing, *, is_short: bool) -> Table:
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


async def _watch_listing(hf: Holdfast, out: Output, chosen: Filter, limit: int) -> None:
    """Poll the runs: on a terminal refresh a table, elsewhere write a line for each changed run."""
    listing = await _read_listing(hf, chosen, limit)
    if out.is_rich:
        with out.terminal.live(lambda: _run_table(listing, is_short=True)) as refresh:
            while True:
                await asyncio.sleep(_WATCH_SECONDS)
                listing = await _read_listing(hf, chosen, limit)
                refresh()
    known: dict[str, RunInfo] = {}
    while True:
        for info in reversed(listing.runs):
            if known.get(info.id) == info:
                continue
            if out.is_json:
                out.event(info)
            else:
                what = about(info, listing.now, listing.workers)
                out.line(f"{info.id}  {state_word(info.state)}  {type_word(info.type)}  {what}")
        known = {info.id: info for info in listing.runs}
        await asyncio.sleep(_WATCH_SECONDS)
        listing = await _read_listing(hf, chosen, limit)


# One run


@store_command("show", "holdfast show 01a1e122", "holdfast show key:order-17 --json")
@run_argument
async def show(out: Output, hf: Holdfast, run: str) -> None:
    """Show one run: its state, why it waits, its history.

    RUN is an id, the beginning of an id, or key:KEY. Each entry of the history has a line: a bar for a step, a thin
    line for a wait, its duration and its attempts. A flow shows its program with a mark at each line that waits, and
    its variables. -v shows tracebacks, and all lines of a long program.
    """
    snapshot = await read(hf, await find_run(hf, run))
    if out.is_json:
        out.item(snapshot)
    else:
        is_verbose = out.settings.verbosity > 0
        out.lines(run_lines(snapshot, await store_now(hf), out.width, is_verbose=is_verbose))


@store_command("watch", "holdfast watch 01a1e122", "holdfast watch key:order-17 --timeout 10m")
@run_argument
@click.option("--timeout", type=LENGTH, help="Stop watching after this time (exit code 12).")
async def watch(out: Output, hf: Holdfast, run: str, timeout: timedelta | None) -> ExitCode:
    """Follow a run until it ends.

    On a terminal it shows a live timeline. Elsewhere it prints one line for each change, with --json one line of JSON.
    The exit code follows the outcome: 0 succeeded, 10 failed, 11 cancelled.
    """
    run_id = await find_run(hf, run)
    first = await read(hf, run_id)
    try:
        with show_progress(out, first) as progress:
            progress.show(first)  # however short the timeout is, it shows how the run stands
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                async for snapshot in follow(hf, run_id, last=first):
                    progress.show(snapshot)
    except TimeoutError:
        out.talk(f"run {run_id} has not ended yet; `holdfast explain {run_id}` says why")
        return ExitCode.STILL_GOING
    return exit_code(progress.snapshot.info.state)


@command("result", "holdfast result 01a1e122", "holdfast result key:order-17 --wait --timeout 60")
@run_argument
@click.option("--wait", is_flag=True, help="Wait for the end of the run.")
@click.option("--timeout", type=LENGTH, help="With --wait: stop waiting after this time.")
def result(out: Output, run: str, *, wait: bool, timeout: timedelta | None) -> ExitCode:
    """Print the result of a run as JSON.

    The exit code follows the outcome: 0 succeeded, 10 failed, 11 cancelled, 12 not ended yet.
    With --json it prints the whole outcome: id, state, result and error.
    """
    check_timeout(timeout, wait=wait)

    async def work(hf: Holdfast) -> ExitCode:
        run_id = await find_run(hf, run)
        info = await (wait_for_end(hf, run_id, timeout) if wait else hf.run(run_id).info())
        if out.is_json:
            out.item(outcome(info))
        return finish(out, info)

    return in_session(out.settings, work)


@store_command("explain", "holdfast explain key:order-17")
@run_argument
async def explain(out: Output, hf: Holdfast, run: str) -> None:
    """Say in one sentence why a run is not moving.

    A flow that has not succeeded also shows its program, with a mark at each line that waits, and its variables. If a
    run is blocked because its history does not fit the code, -v shows both side by side.
    """
    snapshot = await read(hf, await find_run(hf, run))
    if out.is_json:
        known = {"explanation": snapshot.explanation, "plan": snapshot.plan, "flow": snapshot.flow}
        out.item({"id": snapshot.info.id, "state": snapshot.info.state, **known})
        return
    out.line(cleaned(snapshot.explanation))
    is_verbose = out.settings.verbosity > 0
    if snapshot.flow is not None and snapshot.info.state is not RunState.SUCCEEDED:
        out.line("")
        out.lines(program_lines(snapshot.flow, is_terminal=out.width is not None, is_verbose=is_verbose))
    if is_verbose:
        out.lines(divergence_lines(snapshot.info))


@store_command("history", "holdfast history 01a1e122", "holdfast history key:order-17 -o jsonl")
@run_argument
async def history(out: Output, hf: Holdfast, run: str) -> None:
    """List the recorded entries of a run, in the order in which they were committed.

    In a flow, an entry has the line of the program. The snapshots that the flow keeps are the entries @turn/1, @turn/2
    and so on. `holdfast rewind` and `holdfast fork` take the locations of both.
    """
    entries = await hf.run(await find_run(hf, run)).history()
    has_lines = any(entry.line for entry in entries)
    rows = [_entry_row(entry, has_lines=has_lines) for entry in entries]
    out.listing(entries, Table.of(rows, numbers=("line", "attempts", "took"), cut="result"), "nothing is recorded yet")


def _entry_row(entry: EntryInfo, *, has_lines: bool) -> dict[str, Cell]:
    is_snapshot = entry.kind is EntryKind.SNAPSHOT  # it takes no time, and `attempts` is the number of its turn
    took = "" if is_snapshot or entry.finished_at is None else spoken(entry.finished_at - entry.started_at)
    return {
        "location": cleaned(entry.location),
        **({"line": "" if entry.line is None else str(entry.line)} if has_lines else {}),
        "kind": entry.kind.value,
        "state": (entry.state.value, GLYPHS[entry.state][1]),
        "attempts": str(entry.attempts) if entry.attempts and not is_snapshot else "",
        "started": (stamp(entry.started_at), "dim"),
        "took": took,
        "result": _result_cell(entry),
    }


def _result_cell(entry: EntryInfo) -> Cell:
    if entry.unreadable is not None:
        return f"cannot be read: {cleaned(entry.unreadable)}", "bad"
    if entry.error is not None:
        return cleaned(str(entry.error)), "bad"
    return "" if entry.result is None else preview(entry.result, 120)


@store_command("audit", "holdfast audit 01a1e122", "holdfast audit key:order-17 --json")
@run_argument
async def audit(out: Output, hf: Holdfast, run: str) -> None:
    """List the audit log of a run: when and by whom it was claimed, suspended, woken, retried, ended."""
    facts = await hf.run(await find_run(hf, run)).audit()
    if out.is_json:
        out.items(facts)
    else:
        out.table(Table.of((_fact_row(fact, facts[0].at) for fact in facts), numbers=("after",), cut="data"))


def _fact_row(fact: AuditInfo, began: datetime) -> dict[str, Cell]:
    return {
        "at": (stamp(fact.at), "dim"),
        "after": spoken(fact.at - began),
        "event": cleaned(fact.event),
        "by": cleaned(fact.by or ""),
        "data": cleaned("  ".join(f"{name}={value}" for name, value in fact.data.items() if name != BY)),
    }


@command("messages", "holdfast messages key:order-17", "holdfast messages 01a1e122 drop m-4711")
@run_argument
@click.argument("verb", type=click.Choice(["drop"]), required=False, metavar="[drop]")
@click.argument("message", metavar="[ID]", required=False)
def messages(out: Output, run: str, verb: str | None, message: str | None) -> ExitCode:
    """List the messages that a run has not received yet, or drop one of them.

    The exit code is 6 if the run has no unread message with this ID, or a worker holds the run.
    """
    if (verb is None) != (message is None):
        raise Refusal("name the message to drop: holdfast messages RUN drop ID")

    async def work(hf: Holdfast) -> ExitCode:
        handle = hf.run(await find_run(hf, run))
        if message is None:
            unread, now = await handle.messages(), await store_now(hf)
            rows = [_message_row(one, now) for one in unread]
            out.listing(unread, Table.of(rows, cut="payload"), "no unread messages")
            return ExitCode.OK
        is_dropped = await handle.drop_message(message, by=actor())
        if out.is_json:
            out.item({"id": handle.id, "message": message, "dropped": is_dropped})
        elif is_dropped:
            out.line(f"dropped {cleaned(message)}")
        if is_dropped:
            return ExitCode.OK
        advice = f"`holdfast messages {handle.id}` lists them"
        out.talk(f"run {handle.id} has no unread message {cleaned(message)!r}; {advice}")
        return ExitCode.CONFLICT

    return in_session(out.settings, work)


def _message_row(message: MessageInfo, now: datetime) -> dict[str, Cell]:
    return {
        "id": cleaned(message.id),
        "name": cleaned(message.name),
        "sent": (ago(message.sent_at, now), "dim"),
        "payload": preview(message.payload) if message.unreadable is None else cleaned(message.unreadable),
    }
