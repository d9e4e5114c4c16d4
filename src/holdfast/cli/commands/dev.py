"""`holdfast dev`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from holdfast.cli.application import named_application
from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.commands.worker import words_for
from holdfast.cli.exits import ExitCode
from holdfast.cli.logs import log_to_stderr
from holdfast.cli.output import Output
from holdfast.cli.reloading import Reloader
from holdfast.config import settings


@holdfast_command("dev", "holdfast dev shop:hf", "holdfast dev -v")
@click.argument("target", metavar="[MODULE:ATTR]", required=False)
@pass_output
def command(out: Output, target: str | None) -> ExitCode:
    """Execute runs like a worker, and again with the new code whenever a file changes.

    For development. MODULE:ATTR names the Holdfast object, as for a worker; by default it is the one that is
    configured, and so is everything else. Python files and settings below the current directory, or that of the file
    of settings, are watched. A change lets running steps end within their grace; ^C too.
    """
    name, configured = named_application(target, out.settings)
    directory = configured or Path.cwd()
    log_to_stderr(out.settings.verbosity, out.settings.configuration[settings.LOG_FORMAT])
    if out.settings.url is not None:
        os.environ[settings.URL.variable] = out.settings.url  # not among the words, which everybody here can read
    # Python trusts a compiled file whose source has the same size and second: it would miss a word that was replaced by
    # another of the same length right after a start.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    out.talk(f"{name} is executed, and again with each change in {directory}, until ^C")

    async def reload() -> ExitCode:
        return await Reloader(
            words_for(out.settings, target, 1),
            directory,
            grace_seconds=out.settings.configuration[settings.GRACE].total_seconds(),
            talk=out.talk,
        ).run()

    return asyncio.run(reload())
