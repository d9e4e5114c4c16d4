"""`holdfast workers`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from holdfast.app import Holdfast
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.lookup import store_now
from holdfast.cli.output import Output, cleaned
from holdfast.cli.session import in_session
from holdfast.cli.table import Table
from holdfast.cli.times import ago, spoken
from holdfast.engine.store_info import WorkerInfo


@holdfast_command(
    "workers",
    "holdfast workers",
    "holdfast workers ls --json",
)
@click.argument("verb", type=click.Choice(["ls"]), default="ls", metavar="[ls]")
def command(out: Output, verb: str) -> None:
    """List the workers that are alive, and those that died without a shutdown.

    SLOTS is the maximum number of runs of a worker, HELD the number that it holds now. A dead worker keeps its runs
    until other workers take them over.
    """
    del verb  # there is only one

    async def work(hf: Holdfast) -> None:
        workers = await hf.workers.list()
        nothing = "no worker is running; start one with `holdfast worker MODULE:ATTR`"
        out.listing(workers, _table(workers, await store_now(hf)), nothing)

    in_session(out.settings, work)


def _table(workers: Sequence[WorkerInfo], now: datetime) -> Table:
    return Table.of(
        (
            {
                "name": cleaned(worker.name),
                "state": ("alive", "good") if worker.is_alive else ("dead", "bad"),
                "host": cleaned(worker.host),
                "pid": str(worker.pid),
                "slots": str(worker.concurrency),
                "held": str(worker.held),
                "up": spoken((now if worker.is_alive else worker.heartbeat_at) - worker.started_at),
                "heard": (ago(worker.heartbeat_at, now), "dim"),
                "types": ", ".join(worker.types),
            }
            for worker in workers
        ),
        numbers=("pid", "slots", "held", "up"),
        cut="types",
    )
