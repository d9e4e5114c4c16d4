"""`holdfast send`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output
from holdfast.cli.payloads import parse_payload
from holdfast.cli.session import in_session
from holdfast.core.ids import new_id


@holdfast_command(
    "send",
    "holdfast send 01a1e122 approve",
    "holdfast send key:order-17 approve by=ann level:=2",
)
@click.argument("run")
@click.argument("name")
@click.argument("payload", nargs=-1)
@click.option("--id", "message_id", metavar="ID", help="The same id twice is one message.")
@pass_output
def command(out: Output, run: str, name: str, payload: Sequence[str], message_id: str | None) -> None:
    """Send a message to a run, which keeps it until it asks for it.

    RUN is an id, the beginning of one, or key:KEY. PAYLOAD is JSON, @file, - for stdin, or pairs such as
    name=text count:=3.
    """
    value = parse_payload(payload)

    async def work(hf: Holdfast) -> None:
        run_id = await find_run(hf, run)
        sent_id = new_id() if message_id is None else message_id
        await hf.run(run_id).send(name, value, id=sent_id)
        if out.is_json:
            out.item({"run_id": run_id, "name": name, "id": sent_id})
        else:
            out.line(f"sent {name} to {run_id}")

    in_session(out.settings, work)
