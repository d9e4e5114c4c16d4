"""`holdfast dev`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from holdfast.cli.application import named_application
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.commands.worker import words_for
from holdfast.cli.exits import ExitCode
from holdfast.cli.logs import log_to_stderr
from holdfast.cli.output import Output
from holdfast.cli.reloading import Reloader
from holdfast.config import settings


@holdfast_command("dev", "holdfast dev shop:hf", "holdfast dev -v")
@click.argument("target", metavar="[MODULE:ATTR]", required=False)
def command(out: Output, target: str | None) -> ExitCode:
    """Execute runs like a worker, and restart with the new code whenever a file changes. For development.

    MODULE:ATTR names the Holdfast object, as for a worker; the default is the configured one. All other settings come
    from the configuration. The command watches Python files and settings files below the current directory, or below
    the directory of the settings file if that names the application. On a change, and on ^C, running steps may finish
    within their grace period.
    """
    name, configured = named_application(target, out.settings)
    directory = configured or Path.cwd()
    log_to_stderr(out.settings.verbosity, out.settings.configuration[settings.LOG_FORMAT])
    if out.settings.url is not None:
        # Not on the command line, which every user of this machine can read: the URL may contain a password.
        os.environ[settings.URL.variable] = out.settings.url
    # Python trusts a compiled file whose source has the same size and the same second of modification. It would miss a
    # change that keeps the length of the file, right after a start.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    out.talk(f"running {name} until ^C, with a restart after each change in {directory}")

    async def reload() -> ExitCode:
        return await Reloader(
            words_for(out.settings, target, 1),
            directory,
            grace_seconds=out.settings.configuration[settings.GRACE].total_seconds(),
            talk=out.talk,
        ).run()

    return asyncio.run(reload())
