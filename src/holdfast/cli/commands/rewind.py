"""`holdfast rewind`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output
from holdfast.cli.revision_preview import check_can_ask, entry_json, is_agreed, read_run, show_entries
from holdfast.cli.session import in_session
from holdfast.core import revision
from holdfast.core.model import Entry
from holdfast.core.revision import Revision


@holdfast_command(
    "rewind",
    "holdfast rewind key:order-17 charge --dry-run",
    "holdfast rewind 01a1e122 charge --yes",
)
@click.argument("run", shell_complete=completing.runs)
@click.argument("location")
@click.option("--force", is_flag=True, help="Take the run away from the worker that holds it.")
@click.option("--dry-run", is_flag=True, help="Only show what would be dropped.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_output
def command(out: Output, run: str, location: str, *, force: bool, dry_run: bool, yes: bool) -> ExitCode:
    """Drop what a run recorded at LOCATION and everything later, and have it go on from there.

    Messages that were received there become unread, children that were started there are cancelled; a run that has
    ended is reopened. `holdfast history` lists the locations. The exit code is 6 if a worker holds the run.
    """
    check_can_ask("rewind", dry_run=dry_run, yes=yes)

    async def work(hf: Holdfast) -> ExitCode:
        run_id = await find_run(hf, run)
        found, entries, children = await read_run(hf, run_id)
        planned = revision.rewind(found, entries, location, children, await hf.store.now())
        gone = [entry for entry in entries if entry.location in planned.dropped]
        if dry_run:
            if out.is_json:
                out.item({"id": run_id, "location": location, **_plan_json(planned, gone)})
            else:
                show_entries(out, gone)
                out.talk(f"{_words(planned)}; nothing was changed")
            return ExitCode.OK
        if not yes and not is_agreed(out, f"Rewind run {run_id}?", gone, _words(planned)):
            out.talk("nothing was changed")
            return ExitCode.FAILED
        is_rewound = await hf.rewind(run_id, location, force=force, by=actor())
        if out.is_json:
            out.item({"id": run_id, "location": location, "rewound": is_rewound})
        else:
            out.line(f"rewound {run_id} to {location}")
        return ExitCode.OK

    return in_session(out.settings, work)


def _plan_json(planned: Revision, gone: Sequence[Entry]) -> dict[str, object]:
    unread = [{"kind": one.kind.value, "name": one.name, "id": one.ref} for one in planned.unread]
    return {"dropped": [*map(entry_json, gone)], "unread": unread, "cancelled": list(planned.cancelled)}


def _words(planned: Revision) -> str:
    parts = [(len(planned.dropped), "dropped"), (len(planned.unread), "unread again")]
    parts.append((len(planned.cancelled), "child runs cancelled"))
    return ", ".join(f"{count} {what}" for count, what in parts if count)
