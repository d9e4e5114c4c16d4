"""Commands about holdfast itself: `config`, `completion` and `version`. They open no store."""

from __future__ import annotations

import platform

import click
from click.shell_completion import get_completion_class

from holdfast import __version__
from holdfast.cli.command import command
from holdfast.cli.exits import Refusal
from holdfast.cli.output import Cell, Output, Table, cleaned
from holdfast.config.configuration import DEFAULT
from holdfast.config.settings import SETTINGS

_VARIABLE = "_HOLDFAST_COMPLETE"


@command("config", "holdfast config", "holdfast config --origin", "holdfast config --json")
@click.option("--origin", is_flag=True, help="Show where each value comes from. JSON output always has it.")
def config(out: Output, *, origin: bool) -> None:
    """Show the effective settings in this directory, without secrets.

    Each setting comes from the first of these that has it: a flag, the variable HOLDFAST_…, the settings file, the
    default. The settings file is [tool.holdfast] in pyproject.toml, or holdfast.toml, in this directory or the nearest
    parent directory that has one.
    """
    found = {setting: out.settings.configuration.origin(setting) for setting in SETTINGS.values()}
    values = {at: None if one.value is None else at.kind.shown(one.value) for at, one in found.items()}
    if out.is_json:
        out.items([{"setting": at.key, "value": values[at], "origin": one.place} for at, one in found.items()])
        return
    rows: list[dict[str, Cell]] = []
    for setting, one in found.items():
        style = "dim" if one.place == DEFAULT else ""
        shown = setting.otherwise if values[setting] is None else values[setting]
        value = ",".join(map(str, shown)) if isinstance(shown, list) else str(shown)
        place: dict[str, Cell] = {"origin": (cleaned(one.place), style)} if origin else {}
        rows.append({"setting": setting.key, "value": (cleaned(value), style), **place})
    out.table(Table.of(rows, cut="value"))


@command(
    "completion",
    "holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast",
    "holdfast completion zsh > ~/.zfunc/_holdfast",
    "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(out: Output, shell: str) -> None:
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


@command("version", "holdfast version --json")
def version(out: Output) -> None:
    """Print the version."""
    if out.is_json:
        out.item({"holdfast": __version__, "python": platform.python_version(), "platform": platform.platform()})
    else:
        out.line(f"holdfast {__version__}")
        out.line((f"Python {platform.python_version()} on {platform.platform()}", "dim"))
