"""`holdfast migrate`."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.output import Output
from holdfast.cli.render import schema_json
from holdfast.cli.session import engine_for, opened
from holdfast.cli.settings import Settings
from holdfast.config.secret import scrubbed


@holdfast_command(
    "migrate",
    "holdfast migrate --plan",
    "holdfast --url sqlite:///shop.db migrate",
)
@click.option("--plan", is_flag=True, help="Only show what would be done.")
@pass_output
def command(out: Output, *, plan: bool) -> None:
    """Bring the store to the schema of this version; make it if there is none."""
    hf = engine_for(out.settings)
    before = hf.store.schema()
    if not plan:
        asyncio.run(_migrate(out.settings))
    after = hf.store.schema()
    if out.is_json:
        applied = [name for name in before.pending if name not in after.pending]
        out.item({**schema_json(after), "applied": applied})
        return
    out.line(f"{scrubbed(hf.url)}: schema {after.current}, this version needs {after.wanted}")
    for name in before.pending:
        out.line(f"  {'would apply' if plan else 'applied'} {name}")
    if not before.pending:
        out.talk("nothing to do")


async def _migrate(settings: Settings) -> None:
    async with opened(settings, may_create=True, may_migrate=True) as hf:
        await hf.opened()
