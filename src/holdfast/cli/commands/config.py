"""`holdfast config`."""

from __future__ import annotations

import click

from holdfast.cli.command import command as holdfast_command
from holdfast.cli.command import pass_output
from holdfast.cli.output import Output, cleaned
from holdfast.cli.render import setting_json
from holdfast.cli.table import Column, Table
from holdfast.config.configuration import DEFAULT
from holdfast.config.settings import SETTINGS


@holdfast_command("config", "holdfast config", "holdfast config --origin", "holdfast config --json")
@click.option("--origin", is_flag=True, help="Show where each value comes from. JSON always tells it.")
@pass_output
def command(out: Output, *, origin: bool) -> None:
    """Show the settings as they count here, without secrets.

    A flag wins over the variable HOLDFAST_…, which wins over [tool.holdfast] in pyproject.toml or holdfast.toml, of
    this directory or the nearest above it that has one, which wins over the default.
    """
    found = {setting: out.settings.configuration.origin(setting) for setting in SETTINGS.values()}
    if out.is_json:
        out.items([setting_json(setting, one) for setting, one in found.items()])
        return
    columns = [Column("setting"), Column("value", may_be_cut=True)]
    table = Table((*columns, Column("origin")) if origin else tuple(columns))
    for setting, one in found.items():
        style = "dim" if one.place == DEFAULT else ""
        value = setting.otherwise if one.value is None else _text(setting.kind.shown(one.value))
        table.rows.append(
            {"setting": setting.key, "value": (cleaned(value), style), "origin": (cleaned(one.place), style)}
        )
    out.table(table)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
