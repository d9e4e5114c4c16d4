"""`holdfast migrate`."""

from __future__ import annotations

import asyncio

import click

from holdfast.app import session_of
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.output import Output
from holdfast.cli.session import check_schema, engine_for, opened
from holdfast.cli.settings import Settings
from holdfast.config.secret import scrubbed
from holdfast.core.wire import plain_form


@holdfast_command(
    "migrate",
    "holdfast migrate --plan",
    "holdfast --url sqlite:///shop.db migrate",
)
@click.option("--plan", is_flag=True, help="Only show the plan; change nothing.")
@pass_output
def command(out: Output, *, plan: bool) -> None:
    """Create the schema of an empty store. Refuse a store of another version of holdfast.

    A refused store does not change. The message says how to move its runs to a store of this version.
    """
    hf = engine_for(out.settings)
    check_schema(hf)
    is_empty = session_of(hf).store.schema().current == 0
    if is_empty and not plan:
        asyncio.run(_make(out.settings))
    after = session_of(hf).store.schema()
    if out.is_json:
        out.item({**plain_form(after), "is_made": is_empty and not plan})
        return
    found = f"schema number {after.current}" if after.current else "no schema yet"
    out.line(f"{scrubbed(session_of(hf).url)}: {found}, this version needs number {after.wanted}")
    if is_empty:
        out.line(f"  {'would create' if plan else 'created'} schema number {after.wanted}")
    else:
        out.talk("nothing to do")


async def _make(settings: Settings) -> None:
    async with opened(settings, may_create=True) as hf:
        await session_of(hf).open()
