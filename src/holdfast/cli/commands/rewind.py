"""`holdfast rewind`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output
from holdfast.cli.revision_preview import check_can_ask, entry_json, is_agreed, show_entries
from holdfast.cli.run_action import RunAction, RunChoice, choosing, do_to_runs
from holdfast.cli.session import in_session
from holdfast.core.model import Entry
from holdfast.core.revision import Revision
from holdfast.core.states import RunState
from holdfast.engine.planned_rewind import planned_rewind

VERB = RunAction("rewind", "rewinding", "rewound", states=frozenset(RunState), of="", is_destructive=True)


@holdfast_command(
    "rewind",
    "holdfast rewind key:order-17 charge --dry-run",
    "holdfast rewind 01a1e122 01a1e123 charge --yes",
    'holdfast rewind --filter "state:failed type:shop.*" charge --dry-run',
)
@click.argument("targets", nargs=-1, required=True, metavar="[RUN]... LOCATION", shell_complete=completing.runs)
@choosing(VERB, has_runs=False)
@click.option("--force", is_flag=True, help="Also rewind a run that a worker holds; the worker loses it.")
@pass_output
def command(
    out: Output, targets: Sequence[str], words: Sequence[str], *, force: bool, dry_run: bool, yes: bool
) -> ExitCode:
    """Take runs back to LOCATION: drop the entry there and all later entries, and continue from there.

    Messages received in the dropped part become unread, and children started in it are cancelled. A run that has ended
    is reopened. A flow goes back to the snapshot at LOCATION, such as @turn/3, or to the one before the entry there.
    `holdfast history` lists the locations; the name of a step of a pipeline is one too. For a single run, the command
    first shows the entries that would be dropped. With --filter, it skips runs that have nothing at LOCATION.

    The exit code is 6 if a named run did not change, because a worker holds it or it has nothing at LOCATION.
    """
    *runs, location = targets
    if not runs and not words:
        raise Refusal(f"{location!r} is taken as LOCATION, but no RUN is given; name a run before it, or use --filter")
    if len(runs) == 1 and not words:
        return _rewind_one(out, runs[0], location, force=force, dry_run=dry_run, yes=yes)
    choice = RunChoice(runs, words, dry_run, yes)
    return do_to_runs(out, VERB, choice, lambda chosen, how: chosen.rewind(location, force=force, **how))


def _rewind_one(out: Output, run: str, location: str, *, force: bool, dry_run: bool, yes: bool) -> ExitCode:
    """Rewind one run. Show every entry that would be dropped."""
    check_can_ask("rewind", dry_run=dry_run, yes=yes)

    async def work(hf: Holdfast) -> ExitCode:
        run_id = await find_run(hf, run)
        planned, gone = await planned_rewind(session_of(hf).store, run_id, location)
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
        is_rewound = await hf.run(run_id).rewind(location, force=force, by=actor())
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
    let_go = len(planned.cancelled)  # a child that has ended is not cancelled: the run only lets go of it
    parts = [
        (len(planned.dropped), "dropped"),
        (len(planned.unread), "unread again"),
        (let_go, "child cancelled or let go" if let_go == 1 else "children cancelled or let go"),
    ]
    return ", ".join(f"{count} {what}" for count, what in parts if count) or "nothing is dropped"
