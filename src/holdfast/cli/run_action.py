"""An action on runs, one or many, which are named or chosen by a filter."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.filters import RunFilter, parse_filter
from holdfast.cli.lookup import find_run, store_now
from holdfast.cli.output import Output, cleaned
from holdfast.cli.render import state_json
from holdfast.cli.session import in_session
from holdfast.cli.summary import age_word, state_cell, state_word, type_word
from holdfast.cli.table import Column, Table
from holdfast.core.errors import InvalidRequest, KeyConflict, RunBusy, RunNotFound
from holdfast.core.states import LIVE, RunState
from holdfast.engine.info import RunInfo

F = TypeVar("F", bound=Callable[..., Any])
Act = Callable[[Holdfast, str], Awaitable[bool]]
"""What is done to the run of an id; the answer is whether something changed."""

_SHOWN = 10


@dataclass(frozen=True)
class RunAction:
    """The words of a command, which runs a filter chooses for it, and why it may leave a run as it is.

    A destructive one always asks; any other only when a filter chooses the runs. With `reaches_others`, what is done to
    one run may be done to another of those that were named: that nothing is left to do for it is no conflict then.
    """

    name: str
    doing: str
    done: str
    unchanged: Callable[[RunInfo], str]
    states: frozenset[RunState] = LIVE
    of: str = "live "
    is_destructive: bool = False
    reaches_others: bool = False


@dataclass(frozen=True)
class Left:
    """Why a run was left as it is, and whether that was refused or there was only nothing to do."""

    why: str = ""
    is_refused: bool = False


@dataclass(frozen=True)
class RunChoice:
    """Which runs a person means, and how sure they are."""

    runs: Sequence[str]
    words: Sequence[str]
    dry_run: bool
    yes: bool


def choosing(verb: RunAction) -> Callable[[F], F]:
    """The arguments and options by which runs are chosen."""
    which = f"all {verb.of}runs that match, as in `ls`"

    def decorate(command: F) -> F:
        for option in (
            click.option("--yes", "-y", is_flag=True, help="Do not ask."),
            click.option("--dry-run", is_flag=True, help="Only show which runs it would be."),
            click.option(
                "--filter", "words", metavar="FILTER", multiple=True, help=f"{verb.name.capitalize()} {which}."
            ),
            click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completing.runs),
        ):
            command = option(command)
        return command

    return decorate


def do_to_runs(out: Output, verb: RunAction, choice: RunChoice, act: Act) -> ExitCode:
    """Do it to each run that was chosen. The exit code is 6 if one that was named stayed as it is."""
    if bool(choice.runs) == bool(choice.words):
        raise Refusal(f"name the runs to {verb.name}, or choose them with --filter")
    must_ask = (verb.is_destructive or bool(choice.words)) and not choice.yes
    if must_ask and not (choice.dry_run or sys.stdin.isatty()):
        raise Refusal(f"nobody can be asked here whether to {verb.name}; add --yes (or --dry-run to see which runs)")
    chosen = parse_filter(word for given in choice.words for word in given.split())
    if choice.words and chosen.is_empty:
        raise Refusal(
            f"an empty filter would {verb.name} every run; give at least one condition, such as state:suspended"
        )

    async def work(hf: Holdfast) -> ExitCode:
        infos = await (_named(hf, choice.runs) if choice.runs else _matching(hf, chosen, verb.states))
        if choice.dry_run:
            await _preview(out, hf, verb, infos)
            return ExitCode.OK
        if not infos:
            out.talk(f"no {verb.of}run matches")
        elif must_ask and not await _is_agreed(out, hf, verb, infos):
            out.talk(f"nothing was {verb.done}")
            return ExitCode.FAILED
        ids = out.tracked([info.id for info in infos], verb.doing)
        left = {run_id: await _do(hf, verb, run_id, act) for run_id in ids}
        _tell(out, verb, {run_id: one.why for run_id, one in left.items()})
        may_be_done = verb.reaches_others and len(left) > 1
        is_conflict = any(one.is_refused or (one.why and not may_be_done) for one in left.values())
        return ExitCode.CONFLICT if choice.runs and is_conflict else ExitCode.OK

    return in_session(out.settings, work)


async def _do(hf: Holdfast, verb: RunAction, run_id: str, act: Act) -> Left:
    """Do it to one run. What keeps it from being done is the answer, and keeps nobody from the next one."""
    try:
        is_done = await act(hf, run_id)
    except (InvalidRequest, KeyConflict, RunBusy, RunNotFound) as refusal:
        return Left(str(refusal), is_refused=True)
    return Left() if is_done else Left(f"run {run_id} {verb.unchanged(await hf.run(run_id).info())}")


def _tell(out: Output, verb: RunAction, left: Mapping[str, str]) -> None:
    """Say what was done, and of each run that was left as it is, why."""
    if out.is_json:
        out.items([{"id": run_id, verb.done: not why} for run_id, why in left.items()])
    for run_id, why in left.items():
        if why:
            out.talk(cleaned(why))
        elif not out.is_json:
            out.line(f"{verb.done} {run_id}")


async def _named(hf: Holdfast, names: Sequence[str]) -> list[RunInfo]:
    ids = dict.fromkeys([await find_run(hf, name) for name in names])  # each once
    return [await hf.run(run_id).info() for run_id in ids]


async def _matching(hf: Holdfast, chosen: RunFilter, states: frozenset[RunState]) -> list[RunInfo]:
    if chosen.states and not chosen.states & states:
        return []
    return [info async for info in hf.list(**chosen.options() | {"state": chosen.states & states or states})]


async def _is_agreed(out: Output, hf: Holdfast, verb: RunAction, infos: Sequence[RunInfo]) -> bool:
    now = await store_now(hf)
    for info in infos[:_SHOWN]:
        age = age_word(info.created_at, now)
        out.talk(f"  {info.id}  {state_word(info.state):<9}  {type_word(info.type)}  {age}")
    if len(infos) > _SHOWN:
        out.talk(f"  … and {len(infos) - _SHOWN} more")
    what = "this run" if len(infos) == 1 else f"these {len(infos)} runs"
    return click.confirm(f"{verb.name.capitalize()} {what}?", err=True)


async def _preview(out: Output, hf: Holdfast, verb: RunAction, infos: Sequence[RunInfo]) -> None:
    if out.is_json:
        out.items([{"id": info.id, "type": info.type, "state": state_json(info.state)} for info in infos])
        return
    now = await store_now(hf)
    table = Table((Column("id"), Column("state"), Column("type"), Column("created")))
    for info in infos:
        created = age_word(info.created_at, now), "dim"
        type = type_word(info.type)
        table.rows.append({"id": info.id, "state": state_cell(info.state), "type": type, "created": created})
    out.table(table)
    out.talk(f"{len(infos)} {'run' if len(infos) == 1 else 'runs'} would be {verb.done}; nothing was changed")
