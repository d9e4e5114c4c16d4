"""`holdfast export`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.filters import RunFilter, filter_options, parse_filter, words_of_options
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output, cleaned
from holdfast.cli.session import in_session
from holdfast.cli.times import LENGTH
from holdfast.cli.transfer_progress import TransferProgress
from holdfast.engine.export import Export

_SHOWN = 10


@holdfast_command(
    "export",
    "holdfast export > runs.jsonl",
    "holdfast export type:billing.* > billing.jsonl",
    "holdfast export --no-live until:2030-01-01 | gzip > archive.jsonl.gz",
    "holdfast export --dry-run",
)
@click.argument("words", metavar="[FILTER]...", nargs=-1)
@filter_options
@click.option("--no-live", is_flag=True, help="Export only runs that have ended; pause nothing.")
@click.option(
    "--timeout", type=LENGTH, default="60s", show_default=True, help="Maximum time to wait for runs that workers hold."
)
@click.option(
    "--reason", default="exported", show_default=True, help="Why the live runs are paused; `explain` shows it."
)
@click.option("--dry-run", is_flag=True, help="Only print the number of runs; pause nothing.")
def command(
    out: Output, words: Sequence[str], timeout: timedelta, reason: str, *, no_live: bool, dry_run: bool, **options: Any
) -> ExitCode:
    """Write runs to stdout as JSON lines, for `import` into another store.

    FILTER is as for `ls`. Without a filter, the export contains everything: runs, flows, rules of topics, events that
    runs may still receive, dead letters. With a filter, it has the flows of the selected runs.

    Live runs are paused first, and stay paused in this store, so that they never run in both stores. The export
    includes live parents and children of a selected run. The exit code is 1 if a run was left out: because a worker
    did not release it in time, or because its row cannot be read. The file names the unreadable runs.
    """
    chosen = parse_filter([*words, *words_of_options(options)])
    if chosen.deleted:
        raise Refusal("deleted runs cannot be exported; remove deleted:true")
    if not dry_run and sys.stdout.isatty():
        raise Refusal("stdout is a terminal; write the export to a file: holdfast export > runs.jsonl")

    async def work(hf: Holdfast) -> ExitCode:
        wanted = chosen
        if chosen.parent_id is not None:
            wanted = replace(chosen, parent_id=await find_run(hf, chosen.parent_id))
        if dry_run:
            await _preview(out, hf, wanted, is_live=not no_live)
            return ExitCode.OK
        export = hf.export(
            live=not no_live,
            timeout=timeout.total_seconds(),
            reason=reason,
            by=actor(),
            progress=TransferProgress(out),
            **wanted.options(),
        )
        stream = sys.stdout.buffer
        async for line in export:
            stream.write(line)
        stream.flush()
        _tell(out, export)
        return ExitCode.FAILED if export.left or export.unreadable else ExitCode.OK

    return in_session(out.settings, work)


async def _preview(out: Output, hf: Holdfast, chosen: RunFilter, *, is_live: bool) -> None:
    ended = live = held = odd = 0
    async for info in hf.list(**chosen.options()):
        if info.unreadable is not None:
            odd += 1
            continue
        ended += info.state.is_end
        live += not info.state.is_end
        held += info.worker is not None
    if not is_live:
        live = held = 0
    if out.is_json:
        out.item({"ended": ended, "live": live, "held": held, "unreadable": odd})
        return
    out.line(f"{ended:>9,}  runs that have ended")
    out.line(f"{live:>9,}  live runs, which would be paused together with their live parents and children")
    out.line(f"{held:>9,}  of them are held by workers, which would have to release them first")
    if odd:
        out.line(f"{odd:>9,}  runs that cannot be read, and would stay here")
    out.talk("nothing was changed")


def _tell(out: Output, export: Export) -> None:
    kinds = {kind: count for kind, count in export.counts.items() if kind != "unreadable"}
    counts = ", ".join(f"{count:,} {kind}{'' if count == 1 else 's'}" for kind, count in kinds.items())
    out.talk(f"exported {counts or 'nothing'} (export {export.id})")
    if export.counts["schedule"]:
        out.talk("schedules still fire here while a worker runs; stop the workers of this store before you import")
    if export.taken_along:
        out.talk(
            f"{len(export.taken_along):,} of these runs did not match the filter, but are parents or children of live "
            "runs that did"
        )
    for run in export.unreadable[:_SHOWN]:
        out.talk(f"run {run.id} stays here, because it cannot be read: {cleaned(run.why)}")
    if len(export.unreadable) > _SHOWN:
        out.talk(f"… and {len(export.unreadable) - _SHOWN:,} more")
    for run in export.left[:_SHOWN]:
        out.talk(f"left out run {run.id}: {run.why}")
    if len(export.left) > _SHOWN:
        out.talk(f"… and {len(export.left) - _SHOWN:,} more")
    if export.left:
        out.talk("these runs are paused here, or about to be; export again later, or use `holdfast resume` on them")
