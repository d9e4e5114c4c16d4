"""`holdfast import`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.output import Output, cleaned
from holdfast.cli.session import in_session
from holdfast.cli.transfer_progress import TransferProgress
from holdfast.config.secret import scrubbed
from holdfast.engine.importing import FileSummary, ImportReport, summary_of

_SHOWN = 10


@holdfast_command(
    "import",
    "holdfast --url postgresql://localhost/shop import runs.jsonl",
    "holdfast import runs.jsonl --dry-run",
    "zcat archive.jsonl.gz | holdfast import -",
)
@click.argument("file", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Only check the file, and show its contents.")
def command(out: Output, file: str, *, dry_run: bool) -> ExitCode:
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
                _preview(out, summary)
                return ExitCode.OK
            stream.seek(0)
            report = await hf.import_(stream, by=actor(), progress=TransferProgress(out))
            _tell(out, report, scrubbed(session_of(hf).url))
            return ExitCode.CONFLICT if report.refused else ExitCode.OK

        return in_session(out.settings, work, may_create=True)


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """Yield a file that can be read twice. Input from a pipe is copied to a temporary file first."""
    if file != "-":
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
        return
    with _copied(sys.stdin.buffer) as copy:
        yield copy


@contextmanager
def _copied(stream: BinaryIO) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.seek(0)
        yield copy


def _preview(out: Output, summary: FileSummary) -> None:
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


def _tell(out: Output, report: ImportReport, url: str) -> None:
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
    for run in report.refused[:_SHOWN]:
        out.talk(cleaned(run.why))
    if len(report.refused) > _SHOWN:
        out.talk(f"… and {len(report.refused) - _SHOWN:,} more")
    for run in report.unreadable[:_SHOWN]:
        out.talk(f"run {run.id} is not in the file: the export could not read it ({cleaned(run.why)})")
    if report.left:
        out.talk(f"the export left out {report.left:,} runs; export again to get them")
