"""A command: the global options, which every command takes too, and the way from an error to a message."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.cli.exits import ExitCode, exit_code_of
from holdfast.cli.output import Output, cleaned
from holdfast.cli.settings import Settings

R = TypeVar("R")


def global_options(*, with_environment: bool = False) -> list[click.Option]:
    """The options of `holdfast` itself. Each command takes them as well, so that their place does not matter."""

    def option(*names: str, envvar: str | None = None, **attributes: Any) -> click.Option:
        if envvar and with_environment:
            attributes |= {"envvar": envvar, "show_envvar": True}
        return click.Option(names, expose_value=False, hidden=not with_environment, **attributes)

    return [
        option(
            "--url",
            metavar="URL",
            callback=_set_url,  # the variable is read by `Holdfast` itself, so that what is set here was typed
            help="Where the runs are kept, such as sqlite:///shop.db.  [env var: HOLDFAST_URL; default: "
            "sqlite:///holdfast.db]",
        ),
        option("--json", is_flag=True, callback=_set_json, help="Write JSON; the same as -o json."),
        option(
            "-o",
            "--output",
            type=click.Choice(["table", "json", "jsonl"]),
            envvar="HOLDFAST_OUTPUT",
            callback=_set_output,
            help="How to write data: a table for people, or JSON for programs.",
        ),
        option("-q", "--quiet", is_flag=True, callback=_set_quiet, help="Say nothing but data and errors."),
        option(
            "-v",
            "--verbose",
            count=True,
            callback=_set_verbose,
            help="Say more; -vv says everything, tracebacks included.",
        ),
        option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            envvar="HOLDFAST_COLOR",
            callback=_set_color,
            help="Colour and live display; auto: on a terminal, unless NO_COLOR is set.",
        ),
    ]


def _set(context: click.Context, field: str, value: Any, said_by: str) -> None:
    """Note what an option said. Two flags that contradict each other are a mistake; a flag wins over a variable."""
    said: dict[str, tuple[str, Any]] = context.meta.setdefault(f"holdfast {context.command_path}", {})
    if field in said:
        other, chosen = said[field]
        if context.get_parameter_source(said_by) is ParameterSource.ENVIRONMENT or chosen == value:
            return
        raise click.UsageError(f"--{other} and --{said_by} contradict each other; give one of them", context)
    said[field] = said_by, value
    context.obj = replace(context.obj or Settings(), **{field: value})


def _set_url(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        _set(context, "url", value, "url")


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click calls it
    if value:
        _set(context, "output", "json", "json")


def _set_output(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        _set(context, "output", value, "output")


def _set_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click calls it
    if value:
        _set(context, "verbosity", -1, "quiet")


def _set_verbose(context: click.Context, _: click.Parameter, value: int) -> None:
    if value:
        _set(context, "verbosity", value, "verbose")


def _set_color(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        _set(context, "color", value, "color")


class HoldfastCommand(click.Command):
    """A command whose errors end in one clear message and an exit code."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)
        self.params += global_options()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        formatter.write("\nThe options of `holdfast` itself (--url, --json, -o, -q, -v, --color) may stand here too.\n")

    def invoke(self, ctx: click.Context) -> Any:
        settings: Settings = ctx.obj or Settings()
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            Output(settings).talk("interrupted")
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:
            # Whoever read our output, such as `head`, has seen enough. Nothing may be flushed into it any more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = ExitCode.OK
        except Exception as error:  # noqa: BLE001 - the last stop: nobody wants to see a traceback unasked
            code = _told(error, settings)
        ctx.exit(code or ExitCode.OK)


def _told(error: Exception, settings: Settings) -> ExitCode:
    """Tell a person what went wrong."""
    code = exit_code_of(error)
    if settings.shows_tracebacks:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True)
    if code is None:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _complain(f"{what}\nThis was not expected; -vv shows the traceback.", settings)
    else:
        _complain(str(error), settings)
    return code or ExitCode.FAILED


def _complain(message: str, settings: Settings) -> None:
    lines = [cleaned(line) for line in message.splitlines()] or [""]
    word = "Error:"
    if Output(settings).is_rich_for(sys.stderr):
        word = click.style(word, fg="red", bold=True)
    click.echo("\n".join([f"{word} {lines[0]}", *(f"  {line}" for line in lines[1:])]), err=True)


def command(name: str, *examples: str) -> Callable[[Callable[..., ExitCode | None]], HoldfastCommand]:
    """Make a function a command. Its docstring is the help text, and what it returns the exit code."""
    return click.command(
        name,
        cls=HoldfastCommand,
        examples=examples,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def pass_output(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the output it writes to, with the settings, before its own arguments."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> R:
        return function(Output(click.get_current_context().obj or Settings()), *args, **kwargs)

    return wrapped
