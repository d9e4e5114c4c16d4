"""`holdfast fork`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output
from holdfast.cli.payloads import parse_patch
from holdfast.cli.revision_preview import check_can_ask, entry_json, is_agreed, show_entries
from holdfast.cli.session import in_session
from holdfast.cli.streams import despite
from holdfast.core import revision
from holdfast.core.codec import encode_any
from holdfast.core.commands import Fork
from holdfast.core.flow_revision import is_flow
from holdfast.core.model import Entry
from holdfast.engine.flow_patch import ForkPoint, patched_point
from holdfast.engine.planned_rewind import read_run


@holdfast_command(
    "fork",
    "holdfast fork key:order-17 ship --dry-run",
    "holdfast fork 01a1e122 ship --patch 'charge=\"paid by hand\"' --yes",
    "holdfast fork 01a1e122 @turn/3 --patch hours=24",
)
@click.argument("run", shell_complete=completing.runs)
@click.argument("location")
@click.option(
    "--patch",
    "patches",
    metavar="LOCATION=JSON",
    multiple=True,
    help="Replace a recorded result; of a flow, set a variable: NAME=JSON. May be repeated.",
)
@click.option("--id", "new_id", metavar="ID", help="The id of the new run.")
@click.option("--force", is_flag=True, help="Fork even while a worker holds the run; the worker keeps it.")
@click.option("--dry-run", is_flag=True, help="Only show the entries with which the new run would begin.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def command(
    out: Output,
    run: str,
    location: str,
    *,
    patches: Sequence[str],
    new_id: str | None,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> ExitCode:
    """Create a new run from the entries that a run recorded before LOCATION, and print the id of the new run.

    The original run does not change. The new run does not execute the steps before LOCATION again; --patch replaces
    their recorded results. A flow begins with the snapshot at LOCATION, or before it; --patch sets its variables. The
    exit code is 6 if a worker holds the run.
    """
    check_can_ask("fork", dry_run=dry_run, yes=yes)

    async def work(hf: Holdfast) -> ExitCode:
        run_id = await find_run(hf, run)
        found, entries, _ = await read_run(session_of(hf).store, run_id)
        known = {entry.location for entry in entries}
        patch = dict(parse_patch(text, known) for text in patches)
        texts: Mapping[str, str] = {at: encode_any(value) for at, value in patch.items()}
        at, texts = await patched_point(session_of(hf).store, found, entries, ForkPoint(location, texts))
        request = Fork(run_id=run_id, id="preview", new_run_id=new_id or "preview", location=at, patch=dict(texts))
        _, kept = revision.fork(found, entries, request, await session_of(hf).store.now())
        words = f"the new run begins with {len(kept)} of {len(entries)} entries" + _patched_words(patch, entries)
        if dry_run:
            if out.is_json:
                out.item({"of": run_id, "location": location, "kept": [*map(entry_json, kept)], "patched": [*patch]})
            else:
                show_entries(out, kept)
                out.talk(f"{words}; nothing was created")
            return ExitCode.OK
        if not yes and not is_agreed(out, f"Fork run {run_id}?", kept, words):
            out.talk("nothing was created")
            return ExitCode.FAILED
        fork = await hf.run(run_id).fork(location, patch=patch, force=force, id=new_id, by=actor())
        with despite(f"run {fork.id} was created" if fork.created else f"run {fork.id} already exists"):
            out.answer({"id": fork.id, "created": fork.created, "of": run_id}, fork.id)
        if not fork.created:
            out.talk(f"run {fork.id} already exists; it did not change")
        return ExitCode.OK if fork.created else ExitCode.CONFLICT

    return in_session(out.settings, work)


def _patched_words(patch: Mapping[str, object], entries: Sequence[Entry]) -> str:
    if not patch:
        return ""
    return f" and sets {', '.join(patch)}" if is_flow(entries) else f", {len(patch)} of them patched"
