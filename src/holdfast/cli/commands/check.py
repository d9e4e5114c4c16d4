"""The command that checks code against the live runs before a deploy: `check`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.application import load_application, named_application
from holdfast.cli.command import command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.output import Cell, Line, Output, Table, cleaned
from holdfast.cli.session import check_exists, is_in_memory
from holdfast.cli.summary import short_ids, state_cell
from holdfast.cli.view import report_lines
from holdfast.core.intent import matches_type
from holdfast.core.questions import CountRuns
from holdfast.core.states import LIVE
from holdfast.engine.check import FLOW_FITS, RunCheck
from holdfast.runner.dry_run import Fit

_STYLES = {Fit.FITS: "good", Fit.UNDECIDED: "wait", Fit.UNKNOWN: "dim"}
_WORDS = {
    Fit.FITS: "fit",
    Fit.UNDECIDED: "undecided",
    Fit.FAILS: "would fail",
    Fit.DIVERGES: "diverge",
    Fit.VIOLATES: "violate",
    Fit.REFUSES: "refuse their payload",
}


@command(
    "check",
    "holdfast check shop:hf",
    "holdfast check shop:hf --type 'shop.*' --limit 1000",
    "holdfast check shop:hf --allow-undecided",
    "holdfast check shop:hf -o jsonl | jq 'select(.fit == \"diverges\")'",
)
@click.argument("target", metavar="[MODULE:ATTR]", required=False)
@click.option(
    "--type",
    "type_",
    metavar="TYPE",
    shell_complete=completing.types,
    help="Only runs of this type, such as 'billing.*'.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest N runs.  [default: all]")
@click.option("--allow-undecided", is_flag=True, help="Exit with 0 if the worst result is an undecided run.")
def check(out: Output, target: str | None, type_: str | None, limit: int | None, *, allow_undecided: bool) -> ExitCode:
    """Replay all live runs against this code, before a deploy.

    MODULE:ATTR names the Holdfast object, as for a worker; the default is the configured one. The check executes no
    step and writes nothing. It replays the history of each run with the current code, to see whether they still fit.

    Runs that fit are only counted; -v lists them. For the others, the differences come first: the recorded operation,
    the operation that the code requests instead, and a line to paste into the code if the change is intended. -v adds
    history and code side by side.

    The exit code is 1 if the code does not fit a run, fails, or does what only a step may do. It is also 1 if the check
    cannot decide. That happens if the code requests recorded operations in another order (as code that begins to gather
    steps does), or if a workflow with strict=False first does something new. Runs of types that the application does
    not have are listed apart. Flows always fit: each executes the program with which it began.
    """
    name, directory = named_application(target, out.settings)
    hf = load_application(name, out.settings.url, directory)
    if is_in_memory(hf):
        raise Refusal(f"{name} uses a memory store, where no run outlives its process; there is nothing to check")
    check_exists(hf)
    found, undeclared = asyncio.run(_check_runs(out, hf, type_, limit))
    if out.is_json:
        out.items(found)
    else:
        _write(out, found, name)
    if undeclared:
        names = ", ".join(map(cleaned, undeclared))
        out.talk(f"schedules that code declared, but {name} no longer has: {names}; `holdfast schedules rm` ends them")
    is_fine = all(one.is_good or (allow_undecided and one.fit is Fit.UNDECIDED) for one in found)
    return ExitCode.OK if is_fine else ExitCode.FAILED


async def _check_runs(
    out: Output, hf: Holdfast, type: str | None, limit: int | None
) -> tuple[list[RunCheck], list[str]]:
    """Return the check of each run, and the schedules that the code no longer declares."""
    async with hf:
        total = await _count(hf, type)
        with out.counted("checking", total if limit is None else min(limit, total)) as count:
            found = []
            async for one in hf.check(type=type, limit=limit):
                found.append(one)
                count(1)
        declared = {schedule.name for schedule in session_of(hf).registry.schedules()}
        known = [schedule async for schedule in hf.schedules.list(type=type) if schedule.is_declared]
        # Schedules of other types may be declared in another application.
        own = [schedule.name for schedule in known if session_of(hf).registry.get(schedule.type) is not None]
        return found, [name for name in own if name not in declared]


async def _count(hf: Holdfast, type: str | None) -> int:
    counts = await session_of(hf).store.stats(CountRuns())
    return sum(
        number
        for name, states in counts.items()
        if type is None or matches_type(name, type)
        for state, number in states.items()
        if state in LIVE
    )


def _write(out: Output, found: Sequence[RunCheck], target: str) -> None:
    is_verbose = out.settings.verbosity > 0
    known = [one for one in found if one.fit is not Fit.UNKNOWN]
    shown = [one for one in known if is_verbose or one.fit is not Fit.FITS]
    out.lines(_differences(shown))
    out.table(_table(shown, is_short=out.is_rich))
    for one in shown:
        if is_verbose and not one.is_good:
            out.lines([[""], [(f"run {one.id}", "title")], *report_lines(one.report)])
    counts = Counter(one.fit for one in known)
    fits = ", ".join(f"{counts[fit]} {words}" for fit, words in _WORDS.items() if counts[fit])
    out.talk(f"{len(known)} live run{'' if len(known) == 1 else 's'} checked{': ' + fits if fits else ''}")
    if flows := sum(one.summary == FLOW_FITS for one in known):
        out.talk(f"{flows} of them {'is a flow' if flows == 1 else 'are flows'}, whose program no deploy changes")
    if not is_verbose and any(not one.is_good for one in known):
        out.talk("-v shows history and code side by side")
    unknown = Counter(one.type for one in found if one.fit is Fit.UNKNOWN)
    if unknown:
        rows = [{"type": cleaned(type), "live runs": str(number)} for type, number in sorted(unknown.items())]
        out.talk(f"not checked, because {target} does not have these types:")
        out.table(Table.of(rows, numbers=("live runs",)))


def _differences(found: Sequence[RunCheck]) -> Iterator[Line]:
    """Yield each difference once, with the number of affected runs and the lines to paste."""
    differences = Counter(
        (one.type, one.recorded, one.requested, one.hints) for one in found if one.recorded or one.requested
    )
    for (type, recorded, requested, hints), count in differences.items():
        title = f"{type}: recorded {recorded or 'nothing'}, requested {requested or 'nothing'}"
        yield ((cleaned(title), "bad"), f" in {count} run{'' if count == 1 else 's'}")
        yield from ((f"    {cleaned(hint)}",) for hint in hints)
        yield ("",)


def _table(found: Sequence[RunCheck], *, is_short: bool) -> Table:
    ids = [one.id for one in found]
    names = short_ids(ids) if is_short else {id: id for id in ids}
    rows: list[dict[str, Cell]] = [
        {
            "id": names[one.id],
            "type": one.type,
            "key": cleaned(one.key or ""),
            "state": state_cell(one.state),
            "fit": (one.fit.value, _STYLES.get(one.fit, "bad")),
            "recorded": cleaned(one.recorded or ""),
            "requested": cleaned(one.requested or ""),
            "about": "" if one.recorded and one.requested else cleaned(one.summary),
        }
        for one in found
    ]
    return Table.of(rows, cut="about").without_empty_columns()
