"""A group of commands on one subject, such as `holdfast topics ls`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from holdfast.cli.command import HoldfastCommand
from holdfast.cli.option import global_options
from holdfast.core.suggestion import nearest


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


def group(name: str) -> Callable[[Callable[[], None]], HoldfastGroup]:
    """Turn a function into a group. Its docstring is the help text."""
    return click.group(
        name,
        cls=HoldfastGroup,
        context_settings={"help_option_names": ["-h", "--help"]},
        subcommand_metavar="COMMAND ...",
    )
