"""Commands that move runs between stores: `export` and `import`."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli.command import command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.filters import chosen_filter, filter_options
from holdfast.cli.option import LENGTH
from holdfast.cli.output import Output, cleaned
from holdfast.cli.session import actor, find_run, in_session
from holdfast.config.secret import scrubbed
from holdfast.engine.lists import Filter
from holdfast.engine.transfers import Export, FileSummary, ImportReport, summary_of

_SHOWN = 10
_REFRESH_SECONDS = 0.2


class TransferProgress:
    """Counts runs, and shows the counts on stderr if it is a terminal: one line, updated several times a second."""

    def __init__(self, out: Output) -> None:
        self._is_shown = not out.settings.is_quiet and out.is_rich_for(sys.stderr)
        self._done: Counter[str] = Counter()
        self._shown_at = 0.0

    def __call__(self, what: str, count: int) -> None:
        self._done[what] = count if what == "waiting for" else self._done[what] + count
        now = time.monotonic()
        if self._is_shown and now - self._shown_at >= _REFRESH_SECONDS:
            self._shown_at = now
            counts = ", ".join(f"{what} {count:,}" for what, count in self._done.items() if count)
            click.echo(f"\r\x1b[K{counts} runs\r", nl=False, err=True)


def _list_some(out: Output, lines: Sequence[str]) -> None:
    """Print the first lines, and how many there are besides."""
    for line in lines[:_SHOWN]:
        out.talk(line)
    if len(lines) > _SHOWN:
        out.talk(f"… and {len(lines) - _SHOWN:,} more")


@command(
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
def export(
    out: Output, words: Sequence[str], timeout: timedelta, reason: str, *, no_live: bool, dry_run: bool, **options: Any
) -> ExitCode:
    """Write runs to stdout as JSON lines, for `import` into another store.

    FILTER is as for `ls`. Without a filter, the export contains everything: runs, flows, rules of topics, events that
    runs may still receive, dead letters. With a filter, it has the flows of the selected runs.

    Live runs are paused first, and stay paused in this store, so that they never run in both stores. The export
    includes live parents and children of a selected run. The exit code is 1 if a run was left out: because a worker
    did not release it in time, or because its row cannot be read. The file names the unreadable runs.
    """
    chosen = chosen_filter(words, options)
    if chosen.get("deleted"):
        raise Refusal("deleted runs cannot be exported; remove deleted:true")
    if not dry_run and sys.stdout.isatty():
        raise Refusal("stdout is a terminal; write the export to a file: holdfast export > runs.jsonl")

    async def work(hf: Holdfast) -> ExitCode:
        if (parent := chosen.get("parent_id")) is not None:
            chosen["parent_id"] = await find_run(hf, parent)
        if dry_run:
            await _preview_export(out, hf, chosen, is_live=not no_live)
            return ExitCode.OK
        exported = hf.export(
            live=not no_live,
            timeout=timeout.total_seconds(),
            reason=reason,
            by=actor(),
            progress=TransferProgress(out),
            **chosen,
        )
        stream = sys.stdout.buffer
        async for line in exported:
            stream.write(line)
        stream.flush()
        _report_export(out, exported)
        return ExitCode.FAILED if exported.left or exported.unreadable else ExitCode.OK

    return in_session(out.settings, work)


async def _preview_export(out: Output, hf: Holdfast, chosen: Filter, *, is_live: bool) -> None:
    ended = live = held = odd = 0
    async for info in hf.list(**chosen):
        if info.unreadable is not None:
            odd += 1
        elif info.state.is_end:
            ended += 1
        elif is_live:
            live += 1
            held += info.worker is not None
    if out.is_json:
        out.item({"ended": ended, "live": live, "held": held, "unreadable": odd})
        return
    out.line(f"{ended:>9,}  runs that have ended")
    out.line(f"{live:>9,}  live runs, which would be paused together with their live parents and children")
    out.line(f"{held:>9,}  of them are held by workers, which would have to release them first")
    if odd:
        out.line(f"{odd:>9,}  runs that cannot be read, and would stay here")
    out.talk("nothing was changed")


def _report_export(out: Output, export: Export) -> None:
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
    _list_some(
        out, [f"run {run.id} stays here, because it cannot be read: {cleaned(run.why)}" for run in export.unreadable]
    )
    _list_some(out, [f"left out run {run.id}: {run.why}" for run in export.left])
    if export.left:
        out.talk("these runs are paused here, or about to be; export again later, or use `holdfast resume` on them")


@command(
    "import",
    "holdfast --url postgresql://localhost/shop import runs.jsonl",
    "holdfast import runs.jsonl --dry-run",
    "zcat archive.jsonl.gz | holdfast import -",
)
@click.argument("file", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Only check the file, and show its contents.")
def import_(out: Output, file: str, *, dry_run: bool) -> ExitCode:
    """Import the runs that `export` wrote to FILE. FILE - means stdin.

    The command checks the whole file first: it imports nothing from a file that was cut off or changed. A store that
    does not exist yet is created. Runs that
    already exist do not change, so the import can be repeated. When all runs are imported, those that the export paused
    continue here; those that were paused before stay paused. The exit code is 6 if a run was refused, for example
    because its key belongs to another run.
    """
    with _opened(file) as stream:

        async def work(hf: Holdfast) -> ExitCode:
            summary = await summary_of(stream)
            if dry_run:
                _preview_import(out, summary)
                return ExitCode.OK
            stream.seek(0)
            report = await hf.import_(stream, by=actor(), progress=TransferProgress(out))
            _report_import(out, report, scrubbed(session_of(hf).url))
            return ExitCode.CONFLICT if report.refused else ExitCode.OK

        return in_session(out.settings, work, may_create=True)


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """Yield a file that can be read twice. Input from a pipe is copied to a temporary file first."""
    if file == "-":
        with _copied(sys.stdin.buffer) as copy:
            yield copy
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise Refusal(f"{file!r} cannot be read: {error.strerror}", ExitCode.NOT_FOUND) from None
    with stream:
        if stream.seekable():
            yield stream
        else:  # a pipe with a file name, as in `import <(zcat runs.jsonl.gz)`
            with _copied(stream) as copy:
                yield copy


@contextmanager
def _copied(stream: BinaryIO) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.seek(0)
        yield copy


def _preview_import(out: Output, summary: FileSummary) -> None:
    header, counts = summary.header, summary.footer.counts
    if out.is_json:
        out.item({"export_id": header.export_id, "store": header.store, "counts": counts, "states": summary.states})
        return
    out.talk(f"a complete file: export {header.export_id} of a {header.store} store, by holdfast {header.version}")
    for kind, count in counts.items():
        out.line(f"{count:>9,}  {kind}{'' if count == 1 else 's'}")
    for state, count in sorted(summary.states.items()):
        out.line(f"{count:>9,}  of the runs {state}")
    out.talk("nothing was changed")


def _report_import(out: Output, report: ImportReport, url: str) -> None:
    counts = {
        "runs": report.restored,
        "runs that already existed": report.known,
        "runs resumed": report.resumed,
        "flows": report.flows,
        "rules of topics": report.topics,
        "rules of types": report.types,
        "schedules": report.schedules,
        "events": report.events,
        "events skipped, because other events have their numbers here": report.skipped,
        "dead letters": report.letters,
        "runs refused": len(report.refused),
    }
    if out.is_json:
        out.item(report)
    elif report.was_finished:
        out.talk(f"export {report.export_id} was already imported completely into {url}; nothing was changed")
    else:
        for what, count in counts.items():
            if count or what == "runs":
                out.line(f"{count:>9,}  {what}")
    _list_some(out, [cleaned(run.why) for run in report.refused])
    for run in report.unreadable[:_SHOWN]:
        out.talk(f"run {run.id} is not in the file: the export could not read it ({cleaned(run.why)})")
    if report.left:
        out.talk(f"the export left out {report.left:,} runs; export again to get them")
