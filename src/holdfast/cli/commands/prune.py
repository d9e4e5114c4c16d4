"""`holdfast prune`."""

from __future__ import annotations

import sys

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.option import setting_option
from holdfast.cli.output import Output, cleaned
from holdfast.cli.render import pruned_json
from holdfast.cli.session import in_session
from holdfast.config import settings
from holdfast.core.clock import Micros, micros
from holdfast.core.ports import Pruned
from holdfast.worker.pruner import bites

_MANY = 100_000


@holdfast_command("prune", "holdfast prune --dry-run", "holdfast prune", "holdfast prune --retention 7d")
@click.option("--dry-run", is_flag=True, help="Only say how much it would be.")
@setting_option(settings.RETENTION)
@pass_output
def command(out: Output, *, dry_run: bool) -> None:
    """Remove what nobody needs any more. Workers do it by themselves, about every minute.

    Runs go some time after their end: as long after it as they were started with (retention=), as their type says, or
    30 days; children not before their parent has ended. Runs that were deleted go after a day.

    Events beyond the retention or limit of their topic go; those of a queue become dead letters. What was taken from
    queues, ids of messages that were received, and replies are forgotten after a day.
    """
    kept = micros(out.settings.configuration[settings.RETENTION])

    async def work(hf: Holdfast) -> None:
        if dry_run:
            pruned = await session_of(hf).store.prune(_MANY, retention=kept, is_dry_run=True)
        else:
            pruned = await _prune(out, hf, kept)
        if out.is_json:
            out.item(pruned_json(pruned))
        else:
            _tell(out, pruned, is_dry_run=dry_run)

    in_session(out.settings, work)


async def _prune(out: Output, hf: Holdfast, kept: Micros) -> Pruned:
    """Prune bite by bite; a person who waits for many runs sees how far it is."""
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
        "events of queues, now dead letters": pruned.dead_letters,
        "events of queues that were taken": pruned.taken,
        "ids of received messages": pruned.receipts,
        "replies": pruned.replies,
    }
    if not any(counts.values()):
        out.talk("there is nothing to prune")
    for what, count in counts.items():
        if count:
            out.line(f"{count:>9,}  {what}")
    if is_dry_run:
        out.talk("and more; nothing was changed" if pruned.has_more else "nothing was changed")
