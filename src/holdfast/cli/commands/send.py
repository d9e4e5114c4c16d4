"""`holdfast send`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.actor import actor
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output
from holdfast.cli.payloads import parse_payload
from holdfast.cli.session import in_session
from holdfast.cli.streams import despite
from holdfast.cli.times import LENGTH
from holdfast.core.ids import new_id
from holdfast.engine.handle import RunHandle


@holdfast_command(
    "send",
    "holdfast send 01a1e122 approve",
    "holdfast send key:order-17 approve by=ann level:=2",
    "holdfast send key:order-17 status --wait --timeout 10",
)
@click.argument("run", shell_complete=completing.runs)
@click.argument("name")
@click.argument("payload", nargs=-1)
@click.option("--id", "message_id", metavar="ID", help="The id of the message; a repeated id is delivered once.")
@click.option("--wait", is_flag=True, help="Wait for the reply of the run, and print it.")
@click.option("--timeout", type=LENGTH, help="With --wait: stop waiting after this time (exit code 12).")
def command(
    out: Output,
    run: str,
    name: str,
    payload: Sequence[str],
    message_id: str | None,
    *,
    wait: bool,
    timeout: timedelta | None,
) -> ExitCode:
    """Send a message (a signal) to a run. The run keeps it until its code asks for it.

    RUN is an id, the beginning of an id, or key:KEY. PAYLOAD is JSON, @file, - for stdin, or pairs such as
    name=text count:=3.
    """
    if timeout is not None and not wait:
        raise Refusal("--timeout works only with --wait; add --wait")
    value = parse_payload(payload)

    async def work(hf: Holdfast) -> ExitCode:
        run_id = await find_run(hf, run)
        sent_id = new_id() if message_id is None else message_id
        if wait:
            return await _request(out, hf.run(run_id), name, value, sent_id=sent_id, timeout=timeout)
        await hf.run(run_id).send(name, value, id=sent_id, by=actor())
        with despite(f"message {sent_id} was sent"):
            out.answer({"run_id": run_id, "name": name, "id": sent_id}, f"sent {name} to {run_id}")
        return ExitCode.OK

    return in_session(out.settings, work)


async def _request(
    out: Output, run: RunHandle[Any], name: str, value: Any, *, sent_id: str, timeout: timedelta | None
) -> ExitCode:
    seconds = None if timeout is None else timeout.total_seconds()
    try:
        reply = await run.request(name, value, id=sent_id, timeout=seconds, by=actor())
    except TimeoutError:
        out.talk(f"no reply yet; repeat the command with --id {sent_id} to wait for it again")
        return ExitCode.STILL_GOING
    with despite(f"message {sent_id} was sent and answered"):
        out.item({"run_id": run.id, "name": name, "id": sent_id, "reply": reply} if out.is_json else reply)
    return ExitCode.OK
