"""`holdfast explain`."""

from __future__ import annotations

import click

from holdfast.app import Holdfast
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.flow_program import program_lines
from holdfast.cli.follow import read
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output, cleaned
from holdfast.cli.session import in_session
from holdfast.cli.view import divergence_lines
from holdfast.core.states import RunState


@holdfast_command(
    "explain",
    "holdfast explain key:order-17",
)
@click.argument("run", shell_complete=completing.runs)
def command(out: Output, run: str) -> None:
    """Say in one sentence why a run is not moving.

    A flow that has not succeeded also shows its program, with a mark at each line that waits, and its variables. If a
    run is blocked because its history does not fit the code, -v shows both side by side.
    """

    async def work(hf: Holdfast) -> None:
        snapshot = await read(hf, await find_run(hf, run))
        if out.is_json:
            known = {"explanation": snapshot.explanation, "plan": snapshot.plan, "flow": snapshot.flow}
            out.item({"id": snapshot.info.id, "state": snapshot.info.state, **known})
            return
        out.line(cleaned(snapshot.explanation))
        is_verbose = out.settings.verbosity > 0
        if snapshot.flow is not None and snapshot.info.state is not RunState.SUCCEEDED:
            out.line("")
            out.lines(program_lines(snapshot.flow, is_terminal=out.width is not None, is_verbose=is_verbose))
        if is_verbose:
            out.lines(divergence_lines(snapshot.info))

    in_session(out.settings, work)
