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
from holdfast.cli.command import pass_output
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
@click.option("--dry-run", is_flag=True, help="Only check the file, and say what is in it.")
@pass_output
def command(out: Output, file: str, *, dry_run: bool) -> ExitCode:
    """Take in the runs that `export` wrote to FILE, or to stdin if that is `-`.

    The whole file is checked first: one that was cut off or changed imports nothing. Runs that are there already are
    left as they are, so it may be repeated. When all are there, those that the export paused go on here; those that a
    person had paused stay so. The exit code is 6 if a run was refused, such as one whose key belongs to another run.
    """
    with _opened(file) as stream:

        async def work(hf: Holdfast) -> ExitCode:
            summary = await summary_of(stream)
            if dry_run:
                _preview(out, summary)
                return ExitCode.OK
            stream.seek(0)
            report = await hf.import_(stream, by=actor(), told=TransferProgress(out))
            _tell(out, report, scrubbed(session_of(hf).url))
            return ExitCode.CONFLICT if report.refused else ExitCode.OK

        return in_session(out.settings, work)


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """A file that can be read twice; what comes from elsewhere is put aside first."""
    if file != "-":
        try:
            stream = Path(file).open("rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise Refusal(f"{file!r} cannot be read: {error.strerror}", ExitCode.NOT_FOUND) from None
        with stream:
            if stream.seekable():
                yield stream
            else:  # a pipe by another name, as of `import <(zcat runs.jsonl.gz)`
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
    out.talk(f"a whole file: export {header.export_id} of a {header.store} store, by holdfast {header.version}")
    for kind, count in counts.items():
        out.line(f"{count:>9,}  {kind}{'' if count == 1 else 's'}")
    for state, count in sorted(summary.states.items()):
        out.line(f"{count:>9,}  of the runs {state}")
    out.talk("nothing was changed")


def _tell(out: Output, report: ImportReport, url: str) -> None:
    counts = {
        "runs": report.restored,
        "runs that were there already": report.known,
        "runs go on": report.resumed,
        "rules of topics": report.topics,
        "rules of types": report.types,
        "schedules": report.schedules,
        "events": report.events,
        "events were passed over, as their numbers are other events' here": report.skipped,
        "dead letters": report.letters,
        "runs were refused": len(report.refused),
    }
    if out.is_json:
        refused = [{"id": run.id, "why": run.why} for run in report.refused]
        odd = [{"id": run.id, "why": run.why} for run in report.unreadable]
        names = (
            "export_id",
            "restored",
            "known",
            "resumed",
            "topics",
            "types",
            "schedules",
            "events",
            "skipped",
            "letters",
            "left",
            "was_finished",
        )
        out.item({**{name: getattr(report, name) for name in names}, "refused": refused, "unreadable": odd})
    elif report.was_finished:
        out.talk(f"all of export {report.export_id} was imported into {url} before; nothing was changed")
    else:
        for what, count in counts.items():
            if count or what == "runs":
                out.line(f"{count:>9,}  {what}")
    for run in report.refused[:_SHOWN]:
        out.talk(cleaned(run.why))
    if len(report.refused) > _SHOWN:
        out.talk(f"… and {len(report.refused) - _SHOWN:,} more")
    for run in report.unreadable[:_SHOWN]:
        out.talk(f"run {run.id} was left out: it could not be read where it was exported ({cleaned(run.why)})")
    if report.left:
        out.talk(f"{report.left:,} runs were left where they are by the export; export again to bring them")
