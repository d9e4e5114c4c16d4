"""The options of a start on the command line, derived from their declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from holdfast.cli.actor import actor
from holdfast.cli.option import F, combined
from holdfast.cli.payloads import parse_pair
from holdfast.cli.times import LENGTH, MOMENT
from holdfast.core.start_options import OPTIONS

_FLAGS = {"ready_at": "--at", "parent_id": "--parent", "tags": "--tag"}
"""Flags that are shorter than the name of their option."""


def start_options(producer: type) -> Callable[[F], F]:
    """Give a command the options that a producer has. Each reaches the command under its name in Python, or is None."""
    hints = get_type_hints(producer)
    flags = {name: f"--{name.replace('_', '-')}" for name in OPTIONS if name in hints}
    return combined(
        *(
            click.option(_FLAGS.get(name, flag), name, help=OPTIONS[name].help, **_attributes(name, hints[name]))
            for name, flag in flags.items()
        )
    )


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, and the actor."""
    given = {name: value for name, value in options.items() if value is not None}
    tags = dict(parse_pair(pair, "--tag") for pair in options["tags"])
    return {"by": actor()} | given | {"tags": tags}


def _attributes(name: str, hint: Any) -> dict[str, Any]:
    """Return the attributes of the click option for a type in Python."""
    kinds = get_args(hint) or (hint,)
    if get_origin(hint) is Literal:
        return {"type": click.Choice(kinds)}
    if timedelta in kinds:
        return {"type": LENGTH}
    if datetime in kinds:
        return {"type": MOMENT}
    if int in kinds:
        return {"type": int}
    if name == "tags":
        return {"multiple": True, "metavar": "NAME=VALUE"}
    return {"metavar": name.removesuffix("_id").upper()}
