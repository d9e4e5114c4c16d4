"""`holdfast messages`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.lookup import find_run, store_now
from holdfast.cli.output import Output, cleaned, preview
from holdfast.cli.session import in_session
from holdfast.cli.table import Table
from holdfast.cli.times import ago
from holdfast.engine.info import MessageInfo


@holdfast_command(
    "messages",
    "holdfast messages key:order-17",
    "holdfast messages 01a1e122 drop m-4711",
)
@click.argument("run", shell_complete=completing.runs)
@click.argument("verb", type=click.Choice(["drop"]), required=False, metavar="[drop]")
@click.argument("message", metavar="[ID]", required=False)
def command(out: Output, run: str, verb: str | None, message: str | None) -> ExitCode:
    """List the messages that a run has not received yet, or drop one of them.

    The exit code is 6 if the run has no unread message with this ID, or a worker holds the run.
    """
    if (verb is None) != (message is None):
        raise Refusal("name the message to drop: holdfast messages RUN drop ID")

    async def work(hf: Holdfast) -> ExitCode:
        handle = hf.run(await find_run(hf, run))
        if message is not None:
            return _dropped(out, handle.id, message, is_dropped=await handle.drop_message(message, by=actor()))
        unread = await handle.messages()
        out.listing(unread, _table(unread, await store_now(hf)), "no unread messages")
        return ExitCode.OK

    return in_session(out.settings, work)


def _dropped(out: Output, run_id: str, message: str, *, is_dropped: bool) -> ExitCode:
    if out.is_json:
        out.item({"id": run_id, "message": message, "dropped": is_dropped})
    elif is_dropped:
        out.line(f"dropped {cleaned(message)}")
    if not is_dropped:
        out.talk(f"run {run_id} has no unread message {cleaned(message)!r}; `holdfast messages {run_id}` lists them")
    return ExitCode.OK if is_dropped else ExitCode.CONFLICT


def _table(messages: Sequence[MessageInfo], now: datetime) -> Table:
    return Table.of(
        (
            {
                "id": cleaned(message.id),
                "name": cleaned(message.name),
                "sent": (ago(message.sent_at, now), "dim"),
                "payload": preview(message.payload) if message.unreadable is None else cleaned(message.unreadable),
            }
            for message in messages
        ),
        cut="payload",
    )
