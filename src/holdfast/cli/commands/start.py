"""`holdfast start`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import ExitCode, Refusal
from holdfast.cli.output import Output
from holdfast.cli.payloads import parse_object
from holdfast.cli.run_result import finish, outcome, wait_for_end
from holdfast.cli.session import in_session
from holdfast.cli.start_options import given_options, start_options
from holdfast.cli.streams import despite
from holdfast.cli.times import LENGTH, stamp
from holdfast.core.questions import ListTypes
from holdfast.core.start_options import StartOptions
from holdfast.core.suggestion import nearest
from holdfast.engine.handle import RunHandle
from holdfast.engine.liveness import alive, is_handled


@holdfast_command(
    "start",
    'holdfast start shop.checkout.v1 \'{"order": "A-17", "cents": 1200}\'',
    "holdfast start shop.checkout.v1 order=A-17 cents:=1200 --key order-17",
    "holdfast start report.daily @report.json --at 2030-01-31T06:00",
    "holdfast start shop.checkout.v1 order=A-17 --wait --timeout 60",
)
@click.argument("type", shell_complete=completing.types)
@click.argument("payload", nargs=-1)
@start_options(StartOptions)
@click.option("--wait", is_flag=True, help="Wait for the end and print the result; it decides the exit code.")
@click.option("--timeout", type=LENGTH, help="With --wait: stop waiting after this time (exit code 12).")
def command(
    out: Output,
    type: str,
    payload: Sequence[str],
    *,
    wait: bool,
    timeout: timedelta | None,
    **options: Any,
) -> ExitCode:
    """Start a run of a workflow or task, by its type, and print its id.

    PAYLOAD holds the parameters by name: JSON, @file, - for stdin, or pairs such as name=text count:=3.
    The run is durable when the command returns; no worker needs to exist yet.
    """
    at = options["ready_at"]
    if options["delay"] is not None and at is not None:
        raise Refusal("--delay and --at contradict each other; give one of them")
    if timeout is not None and not wait:
        raise Refusal("--timeout works only with --wait; add --wait")
    arguments = parse_object(payload)
    given = given_options(options)

    async def work(hf: Holdfast) -> ExitCode:
        run = await hf.start(type, arguments, **given)
        await _tell(out, hf, run, type, at)
        with despite(f"run {run.id} was started" if run.created else f"run {run.id} already exists"):
            if not wait:
                out.answer({"id": run.id, "created": run.created}, run.id)
                return ExitCode.OK
            info = await wait_for_end(hf, run.id, timeout)
            if out.is_json:
                out.item({"created": run.created, **outcome(info)})
            return finish(out, info)

    return in_session(out.settings, work, may_create=True)


async def _tell(out: Output, hf: Holdfast, run: RunHandle[Any], type: str, at: datetime | None) -> None:
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
