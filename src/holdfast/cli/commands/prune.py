"""`holdfast prune`."""

from __future__ import annotations

import sys

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.option import setting_option
from holdfast.cli.output import Output, cleaned
from holdfast.cli.session import in_session
from holdfast.config import settings
from holdfast.core.clock import Micros, micros
from holdfast.core.ports import Pruned
from holdfast.worker.pruner import bites

_MANY = 100_000


@holdfast_command("prune", "holdfast prune --dry-run", "holdfast prune", "holdfast prune --retention 7d")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@setting_option(settings.RETENTION)
def command(out: Output, *, dry_run: bool) -> None:
    """Remove expired runs and events. Workers do this themselves, about once a minute.

    A run is removed when its retention after its end is over: the retention= of its start, that of its type, or 30
    days. A child is not removed before its parent has ended. Deleted runs are removed after a day.

    Events beyond the retention or limit of their topic are removed; those of a queue become dead letters. Records of
    taken queue events, ids of received messages and replies are removed after a day.
    """
    kept = micros(out.settings.configuration[settings.RETENTION])

    async def work(hf: Holdfast) -> None:
        if dry_run:
            pruned = await session_of(hf).store.prune(_MANY, retention=kept, is_dry_run=True)
        else:
            pruned = await _prune(out, hf, kept)
        if out.is_json:
            out.item(pruned)
        else:
            _tell(out, pruned, is_dry_run=dry_run)

    in_session(out.settings, work)


async def _prune(out: Output, hf: Holdfast, kept: Micros) -> Pruned:
    """Prune bite by bite, with a progress bar on a terminal."""
    total = Pruned()
    expected = (
        await session_of(hf).store.prune(1, retention=kept, is_dry_run=True) if out.is_rich_for(sys.stderr) else total
    )
    with out.counted("pruning", sum(expected.runs.values())) as count:
        async for pruned in bites(session_of(hf).store, kept):
            total = total.plus(pruned)
            count(sum(pruned.runs.values()))
    return total


def _tell(out: Output, pruned: Pruned, *, is_dry_run: bool) -> None:
    counts = {
        **{f"runs of {cleaned(type)}": count for type, count in pruned.runs.items()},
        "expired or surplus events": pruned.events,
        "queue events, now dead letters": pruned.dead_letters,
        "queue events that were taken": pruned.taken,
        "ids of received messages": pruned.receipts,
        "replies": pruned.replies,
        "definitions of flows": pruned.flows,
    }
    if not any(counts.values()):
        out.talk("there is nothing to prune")
    for what, count in counts.items():
        if count:
            out.line(f"{count:>9,}  {what}")
    if is_dry_run:
        out.talk("and more; nothing was changed" if pruned.has_more else "nothing was changed")
