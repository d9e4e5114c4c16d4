"""`holdfast emit`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.output import Output
from holdfast.cli.payloads import parse_payload
from holdfast.cli.session import in_session
from holdfast.cli.streams import despite


@holdfast_command(
    "emit",
    "holdfast emit paid:17",
    "holdfast emit paid:17 '{\"cents\": 1200}'",
    "holdfast emit paid:17 cents:=1200 card=visa",
)
@click.argument("topic", shell_complete=completing.topics)
@click.argument("payload", nargs=-1)
def command(out: Output, topic: str, payload: Sequence[str]) -> None:
    """Publish an event to all runs that wait for it; on a queue topic, to exactly one run.

    PAYLOAD is JSON, @file, - for stdin, or pairs such as name=text count:=3. Runs that already exist and begin to wait
    later get the event too.
    """
    value = parse_payload(payload)

    async def work(hf: Holdfast) -> None:
        reached = await hf.emit(topic, value, by=actor())
        with despite("the event was published"):
            runs = "run" if reached == 1 else "runs"
            out.answer({"topic": topic, "reached": reached}, f"reached {reached} waiting {runs}")

    in_session(out.settings, work, may_create=True)
