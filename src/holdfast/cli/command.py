"""A command: it also takes the global options, and turns an error into a message and an exit code."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast.cli.exits import ExitCode, exit_code_of
from holdfast.cli.option import global_options
from holdfast.cli.output import Output, cleaned
from holdfast.cli.settings import Settings


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
        formatter.write("\nThe global options (--url, --json, -o, -q, -v, --color) also work here.\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        flags = [flag for option in global_options() for flag in option.opts] if incomplete.startswith("-") else []
        return [
            *super().shell_complete(ctx, incomplete),
            *(CompletionItem(flag) for flag in flags if flag.startswith(incomplete)),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        settings = Settings()
        try:
            ctx.obj = settings = Settings.of(ctx.obj or {})
            code = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            Output(settings).talk("interrupted")
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:
            # The reader of stdout, such as `head`, has closed the pipe. A later flush must not fail on it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = ExitCode.OK
        except Exception as error:  # noqa: BLE001 - the last resort: a traceback appears only with -vv
            code = _told(error, settings)
        ctx.exit(code or ExitCode.OK)


def _told(error: Exception, settings: Settings) -> ExitCode:
    """Print an error and return its exit code."""
    code = exit_code_of(error)
    if settings.shows_tracebacks:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True)
    if code is None:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _complain(f"{what}\nThis error is unexpected; -vv shows the traceback.", settings)
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
    """Turn a function into a command. Its docstring is the help text, its return value the exit code.

    Its first argument is the output, which has the settings.
    """
    make = click.command(
        name,
        cls=HoldfastCommand,
        examples=examples,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def decorate(function: Callable[..., ExitCode | None]) -> HoldfastCommand:
        @functools.wraps(function)
        def with_output(*args: Any, **kwargs: Any) -> ExitCode | None:
            return function(Output(click.get_current_context().obj), *args, **kwargs)

        return make(with_output)

    return decorate
