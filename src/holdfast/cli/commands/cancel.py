"""`holdfast cancel`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.filters import RunFilter, parse_filter
from holdfast.cli.lookup import find_run, store_now
from holdfast.cli.output import Output
from holdfast.cli.session import in_session
from holdfast.cli.summary import state_cell
from holdfast.cli.table import Column, Table
from holdfast.cli.times import ago
from holdfast.core.states import LIVE
from holdfast.engine.info import RunInfo

_SHOWN = 10


@holdfast_command(
    "cancel",
    'holdfast cancel 01a1e122 --reason "ordered twice"',
    "holdfast cancel --filter state:suspended --filter type:shop.* --dry-run",
    'holdfast cancel --filter "tag.shop:x since:2h" --yes',
)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--filter", "words", metavar="FILTER", multiple=True, help="Cancel all live runs that match, as in `ls`.")
@click.option("--reason", default="", help="Kept with the run, and told to its parent.")
@click.option("--dry-run", is_flag=True, help="Only show which runs it would be.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_output
def command(
    out: Output, runs: Sequence[str], words: Sequence[str], reason: str, *, dry_run: bool, yes: bool
) -> ExitCode:
    """End runs as cancelled. Whatever they still do is not recorded.

    RUN is an id, the beginning of one, or key:KEY. On a terminal it asks once; elsewhere it needs --yes.
    The exit code is 6 if a run that was named had ended already.
    """
    if bool(runs) == bool(words):
        raise Refusal("name the runs to cancel, or choose them with --filter")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise Refusal("nobody can be asked here whether to cancel; add --yes (or --dry-run to see which runs)")
    chosen = parse_filter(word for given in words for word in given.split())
    if words and chosen.is_empty:
        raise Refusal("an empty filter would cancel every run; give at least one condition, such as state:suspended")

    async def work(hf: Holdfast) -> ExitCode:
        infos = await (_named(hf, runs) if runs else _matching(hf, chosen))
        if dry_run:
            await _preview(out, hf, infos)
            return ExitCode.OK
        if not infos:
            out.talk("no live run matches")
        elif not yes and not await _is_agreed(out, hf, infos):
            out.talk("nothing was cancelled")
            return ExitCode.FAILED
        return await _cancel(out, hf, infos, reason, are_named=bool(runs))

    return in_session(out.settings, work)


async def _named(hf: Holdfast, names: Sequence[str]) -> list[RunInfo]:
    ids = dict.fromkeys([await find_run(hf, name) for name in names])  # each once
    return [await hf.run(run_id).info() for run_id in ids]


async def _matching(hf: Holdfast, chosen: RunFilter) -> list[RunInfo]:
    found = hf.list(**chosen.options() | {"state": chosen.states & LIVE or LIVE})
    if chosen.states and not chosen.states & LIVE:
        return []
    return [info async for info in found]


async def _is_agreed(out: Output, hf: Holdfast, infos: Sequence[RunInfo]) -> bool:
    now = await store_now(hf)
    for info in infos[:_SHOWN]:
        out.talk(f"  {info.id}  {info.state.value:<9}  {info.type}  {ago(info.created_at, now)}")
    if len(infos) > _SHOWN:
        out.talk(f"  … and {len(infos) - _SHOWN} more")
    what = "this run" if len(infos) == 1 else f"these {len(infos)} runs"
    return click.confirm(f"Cancel {what}?", err=True)


async def _preview(out: Output, hf: Holdfast, infos: Sequence[RunInfo]) -> None:
    if out.is_json:
        out.items([{"id": info.id, "type": info.type, "state": info.state.value} for info in infos])
        return
    now = await store_now(hf)
    table = Table((Column("id"), Column("state"), Column("type"), Column("created")))
    for info in infos:
        created = ago(info.created_at, now), "dim"
        table.rows.append({"id": info.id, "state": state_cell(info.state), "type": info.type, "created": created})
    out.table(table)
    out.talk(f"{len(infos)} {'run' if len(infos) == 1 else 'runs'} would be cancelled; nothing was changed")


async def _cancel(out: Output, hf: Holdfast, infos: Sequence[RunInfo], reason: str, *, are_named: bool) -> ExitCode:
    ids = out.tracked([info.id for info in infos], "cancelling")
    outcomes = [(run_id, await hf.cancel(run_id, reason)) for run_id in ids]
    if out.is_json:
        out.items([{"id": run_id, "cancelled": is_cancelled} for run_id, is_cancelled in outcomes])
    for run_id, is_cancelled in outcomes:
        if not out.is_json and is_cancelled:
            out.line(f"cancelled {run_id}")
        elif not is_cancelled:
            out.talk(f"run {run_id} had ended already")
    has_ended = any(not is_cancelled for _, is_cancelled in outcomes)
    return ExitCode.CONFLICT if are_named and has_ended else ExitCode.OK
