"""`holdfast completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.exits import Refusal
from holdfast.cli.output import Output

_VARIABLE = "_HOLDFAST_COMPLETE"


@holdfast_command(
    "completion",
    "holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast",
    "holdfast completion zsh > ~/.zfunc/_holdfast",
    "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(out: Output, shell: str) -> None:
    """Print a script with which a shell completes commands, options, runs, types and topics after TAB.

    Save it where the examples say, and open another shell. For zsh, that directory must be in `fpath` before
    ~/.zshrc calls `compinit`. To try it at once: eval "$(holdfast completion bash)".
    """
    del out  # a script has one format
    complete = get_completion_class(shell)
    if complete is None:
        raise Refusal(f"this version of click has no completion for {shell}; upgrade click")
    root = click.get_current_context().find_root()
    click.echo(complete(root.command, {}, "holdfast", _VARIABLE).source())
