"""`holdfast prune`."""

from __future__ import annotations

import click

from holdfast.app import Holdfast
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.output import Output
from holdfast.cli.render import pruned_json
from holdfast.cli.session import in_session
from holdfast.core.ports import Pruned

_BITE = 500
_MANY = 100_000


@holdfast_command("prune", "holdfast prune --dry-run", "holdfast prune")
@click.option("--dry-run", is_flag=True, help="Only say how much it would be.")
@pass_output
def command(out: Output, *, dry_run: bool) -> None:
    """Remove what nobody needs any more. Workers do it by themselves, about every minute.

    Events beyond the retention or limit of their topic go; those of a queue become dead letters. What was taken from
    queues, ids of messages that were received, and replies are forgotten after a day.
    """

    async def work(hf: Holdfast) -> None:
        if dry_run:
            pruned = await hf.store.prune(_MANY, is_dry_run=True)
        else:
            pruned = await hf.store.prune(_BITE)
            while pruned.has_more:
                pruned = pruned.plus(await hf.store.prune(_BITE))
        if out.is_json:
            out.item(pruned_json(pruned))
        else:
            _tell(out, pruned, is_dry_run=dry_run)

    in_session(out.settings, work)


def _tell(out: Output, pruned: Pruned, *, is_dry_run: bool) -> None:
    counts = {
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
