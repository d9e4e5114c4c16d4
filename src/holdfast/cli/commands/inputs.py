"""Commands that give something to runs: `start`, `send` and `emit`.

They read the payload, which may come from stdin, before they enter the event loop: there, ^C would not end the wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.command import command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.follow import finish, outcome, wait_for_end
from holdfast.cli.option import LENGTH, start_options
from holdfast.cli.output import Output, stamp
from holdfast.cli.payloads import check_timeout, given_options, parse_object, parse_payload
from holdfast.cli.session import actor, find_run, in_session
from holdfast.cli.streams import despite
from holdfast.core.errors import nearest
from holdfast.core.intent import StartOptions
from holdfast.core.model import new_id
from holdfast.core.questions import ListTypes
from holdfast.engine.explain import alive, is_handled
from holdfast.engine.handle import RunHandle

_payload_argument = click.argument("payload", nargs=-1)


@command(
    "start",
    'holdfast start shop.checkout.v1 \'{"order": "A-17", "cents": 1200}\'',
    "holdfast start shop.checkout.v1 order=A-17 cents:=1200 --key order-17",
    "holdfast start report.daily @report.json --at 2030-01-31T06:00",
    "holdfast start shop.checkout.v1 order=A-17 --wait --timeout 60",
)
@click.argument("type", shell_complete=completing.types)
@_payload_argument
@start_options(StartOptions)
@click.option("--wait", is_flag=True, help="Wait for the end and print the result; it decides the exit code.")
@click.option("--timeout", type=LENGTH, help="With --wait: stop waiting after this time (exit code 12).")
def start(
    out: Output, type: str, payload: Sequence[str], *, wait: bool, timeout: timedelta | None, **options: Any
) -> ExitCode:
    """Start a run of a workflow or task, by its type, and print its id.

    PAYLOAD holds the parameters by name: JSON, @file, - for stdin, or pairs such as name=text count:=3.
    The run is durable when the command returns; no worker needs to exist yet.
    """
    at = options["ready_at"]
    if options["delay"] is not None and at is not None:
        raise Refusal("--delay and --at contradict each other; give one of them")
    check_timeout(timeout, wait=wait)
    arguments = parse_object(payload)
    given = given_options(options)

    async def work(hf: Holdfast) -> ExitCode:
        run = await hf.start(type, arguments, **{"by": actor()} | given)
        await _report_start(out, hf, run, type, at)
        with despite(f"run {run.id} was started" if run.created else f"run {run.id} already exists"):
            if not wait:
                out.answer({"id": run.id, "created": run.created}, run.id)
                return ExitCode.OK
            info = await wait_for_end(hf, run.id, timeout)
            if out.is_json:
                out.item({"created": run.created, **outcome(info)})
            return finish(out, info)

    return in_session(out.settings, work, may_create=True)


async def _report_start(out: Output, hf: Holdfast, run: RunHandle[Any], type: str, at: datetime | None) -> None:
    """Print hints: the key exists already, the start is delayed, or no worker handles the type."""
    if not run.created:
        out.talk(f"a run with this key already exists: {run.id}; no new run was started")
        return
    if at is not None:
        out.talk(f"starts at {stamp(at)}")
    now = await session_of(hf).store.now()
    if not is_handled(type, alive(await session_of(hf).store.workers(), now)):
        known = [rule.name for rule in await session_of(hf).store.catalog(ListTypes())]
        meant = None if type in known else nearest(type, known)
        advice = f"; did you mean {meant}?" if meant is not None else " (`holdfast worker MODULE:ATTR`)"
        out.talk(f"no worker for {type} is running yet; the run waits for one{advice}")


@command(
    "send",
    "holdfast send 01a1e122 approve",
    "holdfast send key:order-17 approve by=ann level:=2",
    "holdfast send key:order-17 status --wait --timeout 10",
)
@completing.run_argument
@click.argument("name")
@_payload_argument
@click.option("--id", metavar="ID", help="The id of the message; a repeated id is delivered once.")
@click.option("--wait", is_flag=True, help="Wait for the reply of the run, and print it.")
@click.option("--timeout", type=LENGTH, help="With --wait: stop waiting after this time (exit code 12).")
def send(
    out: Output, run: str, name: str, payload: Sequence[str], id: str | None, *, wait: bool, timeout: timedelta | None
) -> ExitCode:
    """Send a message (a signal) to a run. The run keeps it until its code asks for it.

    RUN is an id, the beginning of an id, or key:KEY. PAYLOAD is JSON, @file, - for stdin, or pairs such as
    name=text count:=3.
    """
    check_timeout(timeout, wait=wait)
    value = parse_payload(payload)

    async def work(hf: Holdfast) -> ExitCode:
        handle = hf.run(await find_run(hf, run))
        sent_id = new_id() if id is None else id
        sent = {"run_id": handle.id, "name": name, "id": sent_id}
        if not wait:
            await handle.send(name, value, id=sent_id, by=actor())
            with despite(f"message {sent_id} was sent"):
                out.answer(sent, f"sent {name} to {handle.id}")
            return ExitCode.OK
        try:
            seconds = None if timeout is None else timeout.total_seconds()
            reply = await handle.request(name, value, id=sent_id, timeout=seconds, by=actor())
        except TimeoutError:
            out.talk(f"no reply yet; repeat the command with --id {sent_id} to wait for it again")
            return ExitCode.STILL_GOING
        with despite(f"message {sent_id} was sent and answered"):
            out.item({**sent, "reply": reply} if out.is_json else reply)
        return ExitCode.OK

    return in_session(out.settings, work)


@command(
    "emit",
    "holdfast emit paid:17",
    "holdfast emit paid:17 '{\"cents\": 1200}'",
    "holdfast emit paid:17 cents:=1200 card=visa",
)
@click.argument("topic", shell_complete=completing.topics)
@_payload_argument
def emit(out: Output, topic: str, payload: Sequence[str]) -> None:
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
