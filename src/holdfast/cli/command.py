"""A command: it also takes the global options, and turns an error into a message and an exit code.

A group has commands on one subject, such as `holdfast topics ls`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast.cli.exits import ExitCode, Refusal, exit_code_of
from holdfast.cli.option import Settings, global_options
from holdfast.cli.output import Output, cleaned
from holdfast.core.errors import nearest

_NAMES = {"help_option_names": ["-h", "--help"]}


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
            code = _report(error, settings)
        ctx.exit(code or ExitCode.OK)


def _report(error: Exception, settings: Settings) -> ExitCode:
    """Print an error and return its exit code."""
    code, message = exit_code_of(error), str(error)
    if settings.verbosity >= 2:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True)
    if code is None:
        what = f"{type(error).__name__}: {message}" if message else type(error).__name__
        message = f"{what}\nThis error is unexpected; -vv shows the traceback."
    lines = [cleaned(line) for line in message.splitlines()] or [""]
    word = "Error:"
    if Output(settings).is_rich_for(sys.stderr):
        word = click.style(word, fg="red", bold=True)
    click.echo("\n".join([f"{word} {lines[0]}", *(f"  {line}" for line in lines[1:])]), err=True)
    return code or ExitCode.FAILED


class HoldfastGroup(click.Group):
    """Commands under a common name. The global options work before and after each of them."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params += global_options()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            near = nearest(args[0], self.commands, cutoff=0.5)
            advice = f"did you mean `{ctx.command_path} {near}`?" if near else f"it has {', '.join(self.commands)}."
            raise click.UsageError(f"{ctx.command_path} has no command {args[0]!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Examples"):
            for command in self.commands.values():
                if isinstance(command, HoldfastCommand):
                    formatter.write(f"{'':>{formatter.current_indent}}{command.examples[0]}\n")

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)  # in the order of their definition, not sorted


def check_can_ask(verb: str, *, unless: bool, preview: str = "") -> None:
    """Refuse a command that needs a confirmation if stdin is not a terminal. `preview`: what --dry-run shows."""
    if not (unless or sys.stdin.isatty()):
        instead = f" (or --dry-run to see {preview})" if preview else ""
        raise Refusal(f"stdin is not a terminal, so `{verb}` cannot ask for confirmation; add --yes{instead}")


def command(name: str, *examples: str) -> Callable[[Callable[..., ExitCode | None]], HoldfastCommand]:
    """Turn a function into a command. Its docstring is the help text, its return value the exit code.

    Its first argument is the output, which has the settings.
    """
    make = click.command(name, cls=HoldfastCommand, examples=examples, context_settings=_NAMES)

    def decorate(function: Callable[..., ExitCode | None]) -> HoldfastCommand:
        @functools.wraps(function)
        def with_output(*args: Any, **kwargs: Any) -> ExitCode | None:
            return function(Output(click.get_current_context().obj), *args, **kwargs)

        return make(with_output)

    return decorate


def store_command(
    name: str, *examples: str, may_create: bool = False
) -> Callable[[Callable[..., Awaitable[ExitCode | None]]], HoldfastCommand]:
    """Turn an async function into a command. Its second argument is an open engine; see `in_session`."""

    def decorate(function: Callable[..., Awaitable[ExitCode | None]]) -> HoldfastCommand:
        @functools.wraps(function)
        def with_engine(out: Output, *args: Any, **kwargs: Any) -> ExitCode | None:
            from holdfast.cli.session import in_session

            return in_session(out.settings, lambda hf: function(out, hf, *args, **kwargs), may_create=may_create)

        return command(name, *examples)(with_engine)

    return decorate


def group(name: str) -> Callable[[Callable[[], None]], HoldfastGroup]:
    """Turn a function into a group. Its docstring is the help text."""
    return click.group(name, cls=HoldfastGroup, context_settings=_NAMES, subcommand_metavar="COMMAND ...")
