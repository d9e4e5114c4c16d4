"""`holdfast rewind`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output
from holdfast.cli.revision_preview import check_can_ask, entry_json, is_agreed, show_entries
from holdfast.cli.run_action import RunChoice, choosing, do_to_runs
from holdfast.cli.session import in_session
from holdfast.core.model import Entry
from holdfast.core.revision import Revision
from holdfast.core.verbs import VERBS
from holdfast.engine.planned_rewind import planned_rewind

VERB = VERBS["rewind"]


@holdfast_command("rewind", *(f"holdfast rewind {example}" for example in VERB.examples))
@click.argument("targets", nargs=-1, required=True, metavar="[RUN]... LOCATION", shell_complete=completing.runs)
@choosing(VERB, has_runs=False)
@click.option("--force", is_flag=True, help=VERB.parameters["force"])
def command(
    out: Output, targets: Sequence[str], words: Sequence[str], *, force: bool, dry_run: bool, yes: bool
) -> ExitCode:
    *runs, location = targets
    if not runs and not words:
        raise Refusal(f"{location!r} is taken as LOCATION, but no RUN is given; name a run before it, or use --filter")
    if len(runs) == 1 and not words:
        return _rewind_one(out, runs[0], location, force=force, dry_run=dry_run, yes=yes)
    return do_to_runs(out, VERB, RunChoice(runs, words, dry_run, yes), location=location, force=force)


command.help = f"{VERB.summary}\n\n{VERB.help}"


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
        rewound = {"id": run_id, "location": location, "rewound": is_rewound}
        out.answer(rewound, f"rewound {run_id} to {location}")
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
