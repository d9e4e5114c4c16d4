"""`holdfast audit`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output, cleaned
from holdfast.cli.session import in_session
from holdfast.cli.table import Table
from holdfast.cli.times import spoken, stamp
from holdfast.core.audit import BY
from holdfast.engine.info import AuditInfo


@holdfast_command(
    "audit",
    "holdfast audit 01a1e122",
    "holdfast audit key:order-17 --json",
)
@click.argument("run", shell_complete=completing.runs)
def command(out: Output, run: str) -> None:
    """List the audit log of a run: when and by whom it was claimed, suspended, woken, retried, ended."""

    async def work(hf: Holdfast) -> None:
        facts = await hf.run(await find_run(hf, run)).audit()
        if out.is_json:
            out.items(facts)
        else:
            out.table(_table(facts))

    in_session(out.settings, work)


def _table(facts: Sequence[AuditInfo]) -> Table:
    return Table.of(
        (
            {
                "at": (stamp(fact.at), "dim"),
                "after": spoken(fact.at - facts[0].at),
                "event": cleaned(fact.event),
                "by": cleaned(fact.by or ""),
                "data": cleaned("  ".join(f"{name}={value}" for name, value in fact.data.items() if name != BY)),
            }
            for fact in facts
        ),
        numbers=("after",),
        cut="data",
    )
