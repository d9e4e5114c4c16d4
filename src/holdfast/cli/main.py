"""The entry point: global options and lazily loaded commands. It imports neither the engine nor a renderer."""

from __future__ import annotations

import importlib
import keyword
import os
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast.cli.exits import ExitCode
from holdfast.cli.option import global_options
from holdfast.cli.streams import OutputLost, secure_streams
from holdfast.core.verbs import VERBS

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "First steps": {
        "demo": ("extras", "Watch a workflow survive the death of its worker."),
    },
    "Run": {
        "dev": ("worker", "Execute runs during development, and reload on change."),
        "start": ("inputs", "Start a run."),
        "worker": ("worker", "Execute runs until SIGTERM or ^C."),
    },
    "Inspect": {
        "ls": ("runs", "List runs, newest first."),
        "show": ("runs", "Show one run: its state, why it waits, its history."),
        "watch": ("runs", "Follow a run until it ends."),
        "result": ("runs", "Print the result of a run."),
        "explain": ("runs", "Say in one sentence why a run is not moving."),
        "history": ("runs", "List the recorded entries of a run."),
        "audit": ("runs", "List the audit log of a run: claims, retries, controls."),
        "messages": ("runs", "List the unread messages of a run, or drop one."),
        "workers": ("store", "List the workers."),
    },
    "Control": {
        "send": ("inputs", "Send a message to a run."),
        "emit": ("inputs", "Publish an event to all runs that wait for it."),
        "topics": ("topics", "Set delivery rules of topics; replay dead letters."),
        "schedules": ("schedules", "Start runs on a schedule: by cron, or at an interval."),
        **{name: ("controls", verb.summary) for name, verb in VERBS.items()},
        "fork": ("controls", "Create a run from the recorded beginning of another."),
    },
    "Operate": {
        "flows": ("flows", "Check, register, read and try out flows."),
        "types": ("types", "Limit types of runs, disable and enable them."),
        "check": ("check", "Replay all live runs against this code, before a deploy."),
        "doctor": ("store", "Check the store, the clock, the workers and all live runs."),
        "bench": ("extras", "Measure how fast the store is."),
        "prune": ("store", "Remove expired runs and events."),
        "export": ("transfer", "Export runs as JSON lines, for another store."),
        "import": ("transfer", "Import runs that were exported from another store."),
        "config": ("about", "Show the settings, and where each comes from."),
        "migrate": ("store", "Create the schema of an empty store."),
        "completion": ("about", "Print a completion script for a shell."),
        "version": ("about", "Print the version."),
    },
}
"""Every command with its module and its summary, so that listing the commands imports none of them."""

EXAMPLES = {
    "holdfast demo": "see it work",
    "holdfast worker shop:hf": "execute the workflows of `hf` in shop.py",
    "holdfast start shop.checkout.v1 order=17": "start a run",
    "holdfast ls state:failed since:2h": "look around",
}

MODULES = {name: module for commands in SECTIONS.values() for name, (module, _) in commands.items()}
SUMMARIES = {name: summary for commands in SECTIONS.values() for name, (_, summary) in commands.items()}


class Commands(click.Group):
    """Commands whose modules, in `holdfast.cli.commands`, are imported only when one of them is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in SUMMARIES:
            return None
        module = importlib.import_module(f"holdfast.cli.commands.{MODULES[cmd_name]}")
        if cmd_name in VERBS:
            found: click.Command = module.command_of(VERBS[cmd_name])
        else:
            found = getattr(module, f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_called = not ctx.resilient_parsing  # False while a shell asks for completions
        if is_called and args and not args[0].startswith("-") and args[0] not in SUMMARIES:
            from holdfast.core.errors import nearest

            near = nearest(args[0], SUMMARIES, cutoff=0.5)
            advice = f"did you mean `holdfast {near}`?" if near else "`holdfast --help` lists the commands."
            raise click.UsageError(f"there is no command {args[0]!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        named = [CompletionItem(name, help=about) for name, about in SUMMARIES.items() if name.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)  # click.Group's would import every command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Examples"):
            formatter.write_dl(list(EXAMPLES.items()), col_max=50)
        widest = max(map(len, SUMMARIES))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(widest), summary) for name, (_, summary) in commands.items()])


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click calls it
    if value:
        from holdfast import __version__

        click.echo(f"holdfast {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    params=[
        *global_options(is_shown=True),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version and exit.",
        ),
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="COMMAND ...",
)
def cli() -> None:
    """Durable workflows: after a crash or deploy, a run continues where it stopped."""


def _readable(word: str) -> str:
    """Return an argument, decoded as UTF-8 if the encoding of the locale (such as C) cannot decode it.

    The name of an existing file stays as it is.
    """
    if not any("\ud800" <= character <= "\udfff" for character in word) or os.path.lexists(word.removeprefix("@")):
        return word
    try:
        return os.fsencode(word).decode()
    except UnicodeError:
        click.echo(
            f"Error: the argument {word!r} is not valid text, neither in UTF-8 nor in the encoding of the locale",
            err=True,
        )
        sys.exit(ExitCode.USAGE)


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line, and exit."""
    secure_streams()
    words = [_readable(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    try:
        return cli.main(words, prog_name="holdfast")
    except OutputLost as lost:  # for example while printing the help
        click.echo(f"Error: {lost}", err=True)
        sys.exit(lost.code)
