"""Commands that change runs: the verbs of `core.verbs`, and `fork`.

A verb changes one or many runs, which are named or selected by a filter. `rewind` of one run and `fork` show first what
they would do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.command import HoldfastCommand, check_can_ask, command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.filters import parse_filter
from holdfast.cli.option import F, combined, yes_option
from holdfast.cli.output import Cell, Output, Table, cleaned
from holdfast.cli.payloads import parse_patch
from holdfast.cli.session import actor, find_run, in_session, store_now
from holdfast.cli.streams import despite
from holdfast.cli.summary import age_word, run_words, state_cell, type_word
from holdfast.core import revision
from holdfast.core.codec import encode_any
from holdfast.core.commands import Fork
from holdfast.core.flow_revision import is_flow
from holdfast.core.model import Entry
from holdfast.core.states import RunState
from holdfast.core.verbs import VERBS, Verb
from holdfast.engine.controls import Selection, SelectionReport, planned_rewind, read_run
from holdfast.engine.flow_view import ForkPoint, patched_point
from holdfast.engine.lists import Filter

_SHOWN = 10
_REWIND = VERBS["rewind"]

# Verbs


class RunChoice(NamedTuple):
    """The runs or the filter from the command line, with --dry-run and --yes."""

    runs: Sequence[str]
    words: Sequence[str]
    dry_run: bool
    yes: bool


def _choosing(verb: Verb) -> Callable[[F], F]:
    """Add the options that select runs to a command."""
    which = f"all {verb.of}runs that match, as in `ls`"
    return combined(
        click.option("--filter", "words", metavar="FILTER", multiple=True, help=f"{verb.name.capitalize()} {which}."),
        click.option("--dry-run", is_flag=True, help="Only show the runs that would change."),
        yes_option,
    )


def command_of(verb: Verb) -> HoldfastCommand:
    """Return the command that applies a verb to runs."""
    if verb is _REWIND:
        return rewind

    def apply(
        out: Output, runs: Sequence[str], words: Sequence[str], *, dry_run: bool, yes: bool, **parameters: Any
    ) -> ExitCode:
        return _change_runs(out, verb, RunChoice(runs, words, dry_run, yes), **parameters)

    apply.__doc__ = f"{verb.summary}\n\n{verb.help}"
    flags = combined(
        click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completing.runs),
        _choosing(verb),
        *(_flag(name, help, verb) for name, help in verb.parameters.items()),
    )
    examples = (f"holdfast {verb.name} {example}" for example in verb.examples)
    return command(verb.name, *examples)(flags(apply))


def _flag(name: str, help: str, verb: Verb) -> Callable[[F], F]:
    is_flag = any(field.name == name and field.type is bool for field in msgspec.structs.fields(verb.command))
    return click.option(f"--{name}", help=help, **({"is_flag": True} if is_flag else {"default": ""}))


def _change_runs(out: Output, verb: Verb, choice: RunChoice, **parameters: Any) -> ExitCode:
    """Apply a verb to each selected run. The exit code is 6 if a named run did not change."""
    if bool(choice.runs) == bool(choice.words):
        raise Refusal(f"name the runs to {verb.name}, or select them with --filter")
    must_ask = (verb.is_destructive or bool(choice.words)) and not choice.yes
    if must_ask:
        check_can_ask(verb.name, unless=choice.dry_run, preview="which runs")
    chosen = parse_filter(word for given in choice.words for word in given.split())
    if choice.words and not chosen:
        raise Refusal(
            f"an empty filter would {verb.name} every run; give at least one condition, such as state:suspended"
        )

    async def apply(selection: Selection, **how: Any) -> SelectionReport:
        report: SelectionReport = await getattr(selection, verb.name)(**parameters, by=actor(), **how)
        return report

    async def work(hf: Holdfast) -> ExitCode:
        selection, total = await _select(hf, choice.runs, chosen, verb.states), len(choice.runs)
        if choice.dry_run or choice.words or must_ask:
            planned = await apply(selection, dry_run=True)
            if choice.dry_run:
                await _preview(out, hf, verb, planned)
                return ExitCode.OK
            if not planned.runs:
                out.talk(f"no {verb.of}run matches")
            elif must_ask and planned.changed and not await _confirm_runs(out, hf, verb, planned):
                out.talk(f"nothing was {verb.done}")
                return ExitCode.FAILED
            # Exactly the runs that were shown, even if others match by now.
            selection, total = hf.runs(ids=[run.id for run in planned.runs]), len(planned.runs)
        with out.counted(verb.doing, total) as count:
            report = await apply(selection, progress=lambda _done, _total: count(1))
        is_conflict = _report(out, verb, report)
        return ExitCode.CONFLICT if choice.runs and is_conflict else ExitCode.OK

    return in_session(out.settings, work)


async def _select(hf: Holdfast, names: Sequence[str], chosen: Filter, states: frozenset[RunState]) -> Selection:
    """Return the named runs, or those that match a filter and are in a state to which the verb applies."""
    if names:
        return hf.runs(ids=[await find_run(hf, name) for name in names])
    wanted = frozenset(chosen.get("state") or ())
    if wanted and not wanted & states:
        return hf.runs(ids=[])
    # A verb for all states needs no condition on the state, so that the store can use the index of another condition.
    if wanted or states != frozenset(RunState):
        chosen["state"] = sorted(wanted & states or states)
    return hf.runs(**chosen)


def _report(out: Output, verb: Verb, report: SelectionReport) -> bool:
    """Write the changed runs, and the reason for each run that did not change. Returns True if one should have."""
    if out.is_json:
        out.items([{"id": run.id, verb.done: not run.why} for run in report.runs])
    for run in report.runs:
        if run.why:
            out.talk(cleaned(run.why))
        elif not out.is_json:
            out.line(f"{verb.done} {run.id}")
    may_be_done = verb.reaches_others and len(report.runs) > 1
    return any(run.is_refused or (run.why and not may_be_done) for run in report.runs)


async def _confirm_runs(out: Output, hf: Holdfast, verb: Verb, planned: SelectionReport) -> bool:
    now, runs = await store_now(hf), [run for run in planned.runs if not run.why]
    for run in runs[:_SHOWN]:
        out.talk(f"  {run_words(run, now)}")
    if len(runs) > _SHOWN:
        out.talk(f"  … and {len(runs) - _SHOWN} more")
    what = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
    return click.confirm(f"{verb.name.capitalize()} {what}?", err=True)


async def _preview(out: Output, hf: Holdfast, verb: Verb, planned: SelectionReport) -> None:
    runs = [run for run in planned.runs if not run.why]
    if out.is_json:
        out.items([{"id": run.id, "type": run.type, "state": run.state} for run in runs])
    else:
        now = await store_now(hf)
        rows: list[dict[str, Cell]] = [
            {
                "id": run.id,
                "state": state_cell(run.state),
                "type": type_word(run.type),
                "created": (age_word(run.created_at, now), "dim"),
            }
            for run in runs
        ]
        out.table(Table.of(rows))
    for why, count in planned.reasons.items():
        out.talk(cleaned(f"{count} would be skipped: {why}"))
    if not out.is_json:
        out.talk(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} would be {verb.done}; nothing was changed")


# Revisions


@command("rewind", *(f"holdfast rewind {example}" for example in _REWIND.examples))
@click.argument("targets", nargs=-1, required=True, metavar="[RUN]... LOCATION", shell_complete=completing.runs)
@_choosing(_REWIND)
@click.option("--force", is_flag=True, help=_REWIND.parameters["force"])
def rewind(
    out: Output, targets: Sequence[str], words: Sequence[str], *, force: bool, dry_run: bool, yes: bool
) -> ExitCode:
    *runs, location = targets
    if not runs and not words:
        raise Refusal(f"{location!r} is taken as LOCATION, but no RUN is given; name a run before it, or use --filter")
    if len(runs) == 1 and not words:
        return _rewind_one(out, runs[0], location, force=force, dry_run=dry_run, yes=yes)
    return _change_runs(out, _REWIND, RunChoice(runs, words, dry_run, yes), location=location, force=force)


rewind.help = f"{_REWIND.summary}\n\n{_REWIND.help}"


def _rewind_one(out: Output, run: str, location: str, *, force: bool, dry_run: bool, yes: bool) -> ExitCode:
    """Rewind one run. Show every entry that would be dropped."""
    check_can_ask("rewind", unless=yes or dry_run, preview="what it would do")

    async def work(hf: Holdfast) -> ExitCode:
        run_id = await find_run(hf, run)
        planned, gone = await planned_rewind(session_of(hf).store, run_id, location)
        released = len(planned.cancelled)  # a child that has ended is not cancelled: the run only lets go of it
        parts = [
            (len(planned.dropped), "dropped"),
            (len(planned.unread), "unread again"),
            (released, "child cancelled or let go" if released == 1 else "children cancelled or let go"),
        ]
        words = ", ".join(f"{count} {what}" for count, what in parts if count) or "nothing is dropped"
        if dry_run:
            unread = [{"kind": one.kind.value, "name": one.name, "id": one.ref} for one in planned.unread]
            dropped = {"dropped": [*map(_entry_json, gone)], "unread": unread, "cancelled": list(planned.cancelled)}
            _preview_revision(
                out, {"id": run_id, "location": location, **dropped}, gone, f"{words}; nothing was changed"
            )
            return ExitCode.OK
        if not yes and not _confirm_revision(out, f"Rewind run {run_id}?", gone, words):
            out.talk("nothing was changed")
            return ExitCode.FAILED
        is_rewound = await hf.run(run_id).rewind(location, force=force, by=actor())
        rewound = {"id": run_id, "location": location, "rewound": is_rewound}
        out.answer(rewound, f"rewound {run_id} to {location}")
        return ExitCode.OK

    return in_session(out.settings, work)


@command(
    "fork",
    "holdfast fork key:order-17 ship --dry-run",
    "holdfast fork 01a1e122 ship --patch 'charge=\"paid by hand\"' --yes",
    "holdfast fork 01a1e122 @turn/3 --patch hours=24",
)
@completing.run_argument
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
@yes_option
def fork(
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
    check_can_ask("fork", unless=yes or dry_run, preview="what it would do")

    async def work(hf: Holdfast) -> ExitCode:
        run_id = await find_run(hf, run)
        found, entries, _ = await read_run(session_of(hf).store, run_id)
        known = {entry.location for entry in entries}
        patch = dict(parse_patch(text, known) for text in patches)
        texts: Mapping[str, str] = {at: encode_any(value) for at, value in patch.items()}
        at, texts = await patched_point(session_of(hf).store, found, entries, ForkPoint(location, texts))
        request = Fork(run_id=run_id, id="preview", new_run_id=new_id or "preview", location=at, patch=dict(texts))
        _, kept = revision.fork(found, entries, request, await session_of(hf).store.now())
        words = f"the new run begins with {len(kept)} of {len(entries)} entries"
        if patch:
            words += f" and sets {', '.join(patch)}" if is_flow(entries) else f", {len(patch)} of them patched"
        if dry_run:
            planned = {"of": run_id, "location": location, "kept": [*map(_entry_json, kept)], "patched": [*patch]}
            _preview_revision(out, planned, kept, f"{words}; nothing was created")
            return ExitCode.OK
        if not yes and not _confirm_revision(out, f"Fork run {run_id}?", kept, words):
            out.talk("nothing was created")
            return ExitCode.FAILED
        new = await hf.run(run_id).fork(location, patch=patch, force=force, id=new_id, by=actor())
        with despite(f"run {new.id} was created" if new.created else f"run {new.id} already exists"):
            out.answer({"id": new.id, "created": new.created, "of": run_id}, new.id)
        if not new.created:
            out.talk(f"run {new.id} already exists; it did not change")
        return ExitCode.OK if new.created else ExitCode.CONFLICT

    return in_session(out.settings, work)


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {"location": entry.location, "kind": entry.kind.value, "state": entry.state.value}


def _preview_revision(out: Output, planned: dict[str, Any], entries: Sequence[Entry], words: str) -> None:
    """Write what a rewind or fork would do. The entries go to stdout: with --dry-run they are the result."""
    if out.is_json:
        out.item(planned)
    else:
        out.table(Table.of(map(_entry_json, entries)))
        out.talk(words)


def _confirm_revision(out: Output, question: str, entries: Sequence[Entry], words: str) -> bool:
    """Show what would happen, and ask for confirmation."""
    for entry in entries:
        out.talk(f"  {entry.location}  {entry.kind.value}  {entry.state.value}")
    out.talk(words)
    return click.confirm(question, err=True)
