"""`holdfast migrate`."""

from __future__ import annotations

import asyncio

import click

from holdfast.app import session_of
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.output import Output
from holdfast.cli.session import engine_for
from holdfast.config.secret import scrubbed
from holdfast.core.clock import moment
from holdfast.core.ports import SchemaStatus, Store
from holdfast.core.wire import plain_form
from holdfast.stores import migrations

_KINDS = {True: "compatible: older workers go on", False: "not compatible: older workers are refused"}


@holdfast_command(
    "migrate",
    "holdfast migrate --plan",
    "holdfast migrate --check --json",
    "holdfast --url sqlite:///shop.db migrate",
)
@click.option("--plan", is_flag=True, help="Only show the steps that are pending; change nothing.")
@click.option("--check", is_flag=True, help="Only check; the exit code is 1 if the store does not fit this version.")
def command(out: Output, *, plan: bool, check: bool) -> ExitCode:
    """Create the schema of an empty store, or bring an older store to the schema number of this version.

    You can repeat the command, interrupt it, and run it twice at once: each step happens wholly or not at all. A store
    of a newer version of holdfast is refused and does not change.
    """
    if plan and check:
        raise Refusal("--plan and --check exclude each other")
    hf = engine_for(out.settings)
    store, shown = session_of(hf).store, scrubbed(session_of(hf).url)
    before = store.schema()
    if check:
        trouble = migrations.trouble(before)
        _show(out, before, shown, trouble=trouble)
        return ExitCode.OK if trouble is None else ExitCode.FAILED
    migrations.check(before, shown, may_migrate=True)
    is_behind = before.current < before.wanted
    if is_behind and not plan:
        asyncio.run(_migrate(store, out))
        _show(out, store.schema(), shown, before=before)
    else:
        _show(out, before, shown)
    return ExitCode.OK


async def _migrate(store: Store, out: Output) -> None:
    await store.open(out.talk)
    await store.close()


def _show(
    out: Output, found: SchemaStatus, shown: str, *, before: SchemaStatus | None = None, trouble: str | None = None
) -> None:
    """Show the numbers of a store. `before` is its status before the changes that were made."""
    done = [] if before is None else [step for step in found.applied if step.number > before.current]
    is_made = before is not None and before.current == 0
    if out.is_json:
        applied = [{**plain_form(step), "at": moment(step.at)} for step in found.applied]
        out.item({**plain_form(found), "applied": applied, "is_made": is_made, "trouble": trouble})
        return
    number = f"schema number {found.current}" if found.current else "no schema yet"
    out.line(f"{shown}: {number}, this version needs number {found.wanted}")
    if trouble is not None:
        out.line(f"  {trouble}")
    elif found.current == 0 or is_made:
        out.line(f"  {'created' if is_made else 'would create'} schema number {found.wanted}")
    for step in found.pending:
        out.line(f"  step {step.number}: {step.about} ({_KINDS[step.is_compatible]})")
    for one in [] if is_made else done:
        out.line(f"  applied step {one.number}, {one.name}")
    if not (trouble or found.pending or done or is_made or found.current == 0):
        out.talk("nothing to do")
