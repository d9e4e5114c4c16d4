"""`holdfast workers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.output import Output, cleaned
from holdfast.cli.render import worker_json
from holdfast.cli.session import in_session
from holdfast.cli.table import Column, Table
from holdfast.cli.times import ago, spoken
from holdfast.core.clock import Micros, moment
from holdfast.core.model import WorkerRecord
from holdfast.core.questions import CountLeases
from holdfast.engine.liveness import is_alive


@holdfast_command(
    "workers",
    "holdfast workers",
    "holdfast workers ls --json",
)
@click.argument("verb", type=click.Choice(["ls"]), default="ls", metavar="[ls]")
@pass_output
def command(out: Output, verb: str) -> None:
    """List the workers that are alive, and those that died without a shutdown.

    SLOTS is the maximum number of runs of a worker, HELD the number that it holds now. A dead worker keeps its runs
    until other workers take them over.
    """
    del verb  # there is only one

    async def work(hf: Holdfast) -> None:
        workers = await session_of(hf).store.workers()
        held = await session_of(hf).store.stats(CountLeases())
        now = await session_of(hf).store.now()
        if out.is_json:
            out.items(
                [worker_json(worker, is_alive=is_alive(worker, now), held=held.get(worker.id, 0)) for worker in workers]
            )
        else:
            out.table(_table(workers, held, now))
            if not workers:
                out.talk("no worker is running; start one with `holdfast worker MODULE:ATTR`")

    in_session(out.settings, work)


def _table(workers: Sequence[WorkerRecord], held: Mapping[str, int], now: Micros) -> Table:
    columns = (
        Column("name"),
        Column("state"),
        Column("host"),
        Column("pid", is_number=True),
        Column("slots", is_number=True),
        Column("held", is_number=True),
        Column("up", is_number=True),
        Column("heard"),
        Column("types", may_be_cut=True),
    )
    table = Table(columns)
    for worker in workers:
        heard = moment(worker.heartbeat_at)
        last = moment(now) if is_alive(worker, now) else heard
        table.rows.append(
            {
                "name": cleaned(worker.name),
                "state": ("alive", "good") if is_alive(worker, now) else ("dead", "bad"),
                "host": cleaned(worker.host),
                "pid": str(worker.pid),
                "slots": str(worker.concurrency),
                "held": str(held.get(worker.id, 0)),
                "up": spoken(last - moment(worker.started_at)),
                "heard": (ago(heard, moment(now)), "dim"),
                "types": ", ".join(worker.types),
            }
        )
    return table
