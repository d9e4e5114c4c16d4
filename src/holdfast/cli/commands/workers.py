"""`holdfast workers`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.output import Output, cleaned
from holdfast.cli.render import worker_json
from holdfast.cli.session import in_session
from holdfast.cli.table import Column, Table
from holdfast.cli.times import ago, spoken
from holdfast.core.clock import Micros, moment
from holdfast.core.model import WorkerInfo
from holdfast.engine.explain import DEAD_AFTER


@holdfast_command(
    "workers",
    "holdfast workers",
    "holdfast workers ls --json",
)
@click.argument("verb", type=click.Choice(["ls"]), default="ls", metavar="[ls]")
@pass_output
def command(out: Output, verb: str) -> None:
    """List the workers: alive ones, and those that died without a word."""
    del verb  # only one so far

    async def work(hf: Holdfast) -> None:
        workers = await hf.store.workers()
        now = await hf.store.now()
        if out.is_json:
            out.items([worker_json(worker, is_alive=is_alive(worker, now)) for worker in workers])
        else:
            out.table(_table(workers, now))
            if not workers:
                out.talk("no worker is running; start one with `holdfast worker MODULE:ATTR`")

    in_session(out.settings, work)


def is_alive(worker: WorkerInfo, now: Micros) -> bool:
    """Whether a worker was heard of lately."""
    return worker.heartbeat_at > now - DEAD_AFTER


def _table(workers: Sequence[WorkerInfo], now: Micros) -> Table:
    columns = (
        Column("name"),
        Column("state"),
        Column("host"),
        Column("pid", is_number=True),
        Column("runs", is_number=True),
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
                "runs": str(worker.concurrency),
                "up": spoken(last - moment(worker.started_at)),
                "heard": (ago(heard, moment(now)), "dim"),
                "types": ", ".join(worker.types),
            }
        )
    return table
