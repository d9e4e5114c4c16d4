"""An action on one or many runs, which are named or selected by a filter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import HoldfastCommand
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.filters import RunFilter, parse_filter
from holdfast.cli.lookup import find_run, store_now
from holdfast.cli.option import F, combined
from holdfast.cli.output import Output, cleaned
from holdfast.cli.session import in_session
from holdfast.cli.summary import age_word, state_cell, state_word, type_word
from holdfast.cli.table import Cell, Table
from holdfast.core.states import RunState
from holdfast.core.verbs import Verb
from holdfast.engine.selection import SelectedRun, Selection, SelectionReport

_SHOWN = 10


@dataclass(frozen=True)
class RunChoice:
    """The runs or the filter from the command line, with --dry-run and --yes."""

    runs: Sequence[str]
    words: Sequence[str]
    dry_run: bool
    yes: bool


def choosing(verb: Verb, *, has_runs: bool = True) -> Callable[[F], F]:
    """Add the arguments and options that select runs to a command."""
    which = f"all {verb.of}runs that match, as in `ls`"
    runs = click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completing.runs)
    return combined(
        *([runs] if has_runs else []),
        click.option("--filter", "words", metavar="FILTER", multiple=True, help=f"{verb.name.capitalize()} {which}."),
        click.option("--dry-run", is_flag=True, help="Only show the runs that would change."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation."),
    )


def command_of(verb: Verb) -> HoldfastCommand:
    """Return the command that applies a verb of `core.verbs` to runs."""

    def apply(
        out: Output, runs: Sequence[str], words: Sequence[str], *, dry_run: bool, yes: bool, **parameters: Any
    ) -> ExitCode:
        return do_to_runs(out, verb, RunChoice(runs, words, dry_run, yes), **parameters)

    apply.__doc__ = f"{verb.summary}\n\n{verb.help}"
    flags = combined(choosing(verb), *(_flag(name, help, verb) for name, help in verb.parameters.items()))
    examples = (f"holdfast {verb.name} {example}" for example in verb.examples)
    return holdfast_command(verb.name, *examples)(flags(apply))


def _flag(name: str, help: str, verb: Verb) -> Callable[[F], F]:
    is_flag = any(field.name == name and field.type is bool for field in msgspec.structs.fields(verb.command))
    return click.option(f"--{name}", help=help, **({"is_flag": True} if is_flag else {"default": ""}))


def do_to_runs(out: Output, verb: Verb, choice: RunChoice, **parameters: Any) -> ExitCode:
    """Apply a verb to each selected run. The exit code is 6 if a named run did not change."""
    if bool(choice.runs) == bool(choice.words):
        raise Refusal(f"name the runs to {verb.name}, or select them with --filter")
    must_ask = (verb.is_destructive or bool(choice.words)) and not choice.yes
    if must_ask and not (choice.dry_run or sys.stdin.isatty()):
        raise Refusal(
            f"stdin is not a terminal, so `{verb.name}` cannot ask for confirmation; add --yes "
            "(or --dry-run to see which runs)"
        )
    chosen = parse_filter(word for given in choice.words for word in given.split())
    if choice.words and chosen.is_empty:
        raise Refusal(
            f"an empty filter would {verb.name} every run; give at least one condition, such as state:suspended"
        )

    async def applied(selection: Selection, **how: Any) -> SelectionReport:
        report: SelectionReport = await getattr(selection, verb.name)(**parameters, by=actor(), **how)
        return report

    async def work(hf: Holdfast) -> ExitCode:
        selection = await (_named(hf, choice.runs) if choice.runs else _matching(hf, chosen, verb.states))
        total = len(choice.runs)
        if choice.dry_run or choice.words or must_ask:
            planned = await applied(selection, dry_run=True)
            if choice.dry_run:
                await _preview(out, hf, verb, planned)
                return ExitCode.OK
            if not planned.runs:
                out.talk(f"no {verb.of}run matches")
            elif must_ask and planned.changed and not await _is_agreed(out, hf, verb, planned):
                out.talk(f"nothing was {verb.done}")
                return ExitCode.FAILED
            # Exactly the runs that were shown, even if others match by now.
            selection, total = hf.runs(ids=[run.id for run in planned.runs]), len(planned.runs)
        with out.counted(verb.doing, total) as count:
            report = await applied(selection, progress=lambda _done, _total: count(1))
        _tell(out, verb, report)
        may_be_done = verb.reaches_others and len(report.runs) > 1
        is_conflict = any(run.is_refused or (run.why and not may_be_done) for run in report.runs)
        return ExitCode.CONFLICT if choice.runs and is_conflict else ExitCode.OK

    return in_session(out.settings, work)


def _tell(out: Output, verb: Verb, report: SelectionReport) -> None:
    """Write the changed runs, and the reason for each run that did not change."""
    if out.is_json:
        out.items([{"id": run.id, verb.done: not run.why} for run in report.runs])
    for run in report.runs:
        if run.why:
            out.talk(cleaned(run.why))
        elif not out.is_json:
            out.line(f"{verb.done} {run.id}")


async def _named(hf: Holdfast, names: Sequence[str]) -> Selection:
    return hf.runs(ids=[await find_run(hf, name) for name in names])


async def _matching(hf: Holdfast, chosen: RunFilter, states: frozenset[RunState]) -> Selection:
    if chosen.states and not chosen.states & states:
        return hf.runs(ids=[])
    # A verb for all states needs no condition on the state, so that the store can use the index of another condition.
    narrowed = None if states == frozenset(RunState) and not chosen.states else sorted(chosen.states & states or states)
    return hf.runs(**chosen.options() | {"state": narrowed})


def _expected(report: SelectionReport) -> list[SelectedRun]:
    return [run for run in report.runs if not run.why]


async def _is_agreed(out: Output, hf: Holdfast, verb: Verb, planned: SelectionReport) -> bool:
    now, runs = await store_now(hf), _expected(planned)
    for run in runs[:_SHOWN]:
        age = age_word(run.created_at, now)
        out.talk(f"  {run.id}  {state_word(run.state):<9}  {type_word(run.type)}  {age}")
    if len(runs) > _SHOWN:
        out.talk(f"  … and {len(runs) - _SHOWN} more")
    what = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
    return click.confirm(f"{verb.name.capitalize()} {what}?", err=True)


async def _preview(out: Output, hf: Holdfast, verb: Verb, planned: SelectionReport) -> None:
    runs = _expected(planned)
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
