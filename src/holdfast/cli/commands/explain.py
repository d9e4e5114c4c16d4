"""`holdfast explain`."""

from __future__ import annotations

import click

from holdfast.app import Holdfast, session_of
from holdfast.cli import completing
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.lookup import find_run
from holdfast.cli.output import Output, cleaned
from holdfast.cli.render import plan_json
from holdfast.cli.session import in_session
from holdfast.cli.view import divergence_lines
from holdfast.engine.plan import plan_progress


@holdfast_command(
    "explain",
    "holdfast explain key:order-17",
)
@click.argument("run", shell_complete=completing.runs)
@pass_output
def command(out: Output, run: str) -> None:
    """Say in one sentence why a run is not moving.

    If a run is blocked because its history does not fit the code, -v shows both side by side.
    """

    async def work(hf: Holdfast) -> None:
        handle = hf.run(await find_run(hf, run))
        explanation = await handle.explain()
        if out.is_json:
            info = await handle.info()
            details = await session_of(hf).store.get(info.id)
            plan = None if details is None else await plan_progress(session_of(hf).store, details)
            said = {"id": info.id, "state": info.state.value, "explanation": explanation, "plan": plan_json(plan)}
            out.item(said)
        else:
            out.line(cleaned(explanation))
            if out.settings.verbosity > 0:
                out.lines(divergence_lines(await handle.info()))

    in_session(out.settings, work)
