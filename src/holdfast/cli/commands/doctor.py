"""`holdfast doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from holdfast.app import session_of
from holdfast.cli.checkup import findings
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import Output, cleaned
from holdfast.cli.session import check_exists, engine_for, opened
from holdfast.cli.settings import Settings
from holdfast.core.ports import Finding
from holdfast.stores import migrations

_MARKS = {"ok": ("✓", "good"), "warning": ("!", "wait"), "problem": ("✗", "bad")}


@holdfast_command("doctor", "holdfast doctor", "holdfast doctor --strict --json")
@click.option("--strict", is_flag=True, help="Treat warnings as problems.")
def command(out: Output, *, strict: bool) -> ExitCode:
    """Check the store, the clock, the workers, the schedules and all live runs.

    The exit code is 1 if there is a problem, with --strict also if there is a warning.
    """
    found = asyncio.run(_examine(out.settings))
    if out.is_json:
        out.items(found)
    else:
        _write(out, found)
    levels = {finding.level for finding in found}
    is_bad = "problem" in levels or (strict and "warning" in levels)
    return ExitCode.FAILED if is_bad else ExitCode.OK


async def _examine(settings: Settings) -> list[Finding]:
    hf = engine_for(settings)
    check_exists(hf)
    if (trouble := migrations.trouble(session_of(hf).store.schema())) is not None:
        # The other checks need the schema of this version.
        return [Finding.problem("schema", trouble)]
    async with opened(settings) as hf, hf:
        return await findings(hf)


def _write(out: Output, found: Sequence[Finding]) -> None:
    width = max(len(finding.subject) for finding in found)
    for finding in found:
        out.line(_MARKS[finding.level], f" {finding.subject:<{width}}  ", cleaned(finding.text))
    counts = {level: sum(finding.level == level for finding in found) for level in ("problem", "warning")}
    if not any(counts.values()):
        out.talk("everything is in order")
    else:
        out.talk(", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items() if count))
