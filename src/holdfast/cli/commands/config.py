"""`holdfast config`."""

from __future__ import annotations

import click

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.output import Output, cleaned
from holdfast.cli.table import Cell, Table
from holdfast.config.configuration import DEFAULT
from holdfast.config.settings import SETTINGS


@holdfast_command("config", "holdfast config", "holdfast config --origin", "holdfast config --json")
@click.option("--origin", is_flag=True, help="Show where each value comes from. JSON output always has it.")
def command(out: Output, *, origin: bool) -> None:
    """Show the effective settings in this directory, without secrets.

    Each setting comes from the first of these that has it: a flag, the variable HOLDFAST_…, the settings file, the
    default. The settings file is [tool.holdfast] in pyproject.toml, or holdfast.toml, in this directory or the nearest
    parent directory that has one.
    """
    found = {setting: out.settings.configuration.origin(setting) for setting in SETTINGS.values()}
    if out.is_json:
        values = [None if one.value is None else setting.kind.shown(one.value) for setting, one in found.items()]
        origins = zip(found.items(), values, strict=True)
        out.items([{"setting": at.key, "value": value, "origin": one.place} for (at, one), value in origins])
        return
    rows: list[dict[str, Cell]] = []
    for setting, one in found.items():
        style = "dim" if one.place == DEFAULT else ""
        value = setting.otherwise if one.value is None else _text(setting.kind.shown(one.value))
        place: dict[str, Cell] = {"origin": (cleaned(one.place), style)} if origin else {}
        rows.append({"setting": setting.key, "value": (cleaned(value), style), **place})
    out.table(Table.of(rows, cut="value"))


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
