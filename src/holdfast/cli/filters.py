"""Filters: select the runs of a command, as in `state:failed type:billing.* tag.shop:x key:… since:2h`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import click

from holdfast.cli import completing
from holdfast.cli.exits import Refusal
from holdfast.cli.option import combined, parse_moment, parse_since
from holdfast.cli.payloads import parse_pair
from holdfast.core.errors import nearest
from holdfast.core.states import RunState
from holdfast.engine.lists import Filter

WORDS = "state: type: key: tag.NAME: parent: since: until: deleted:"


def parse_filter(words: Iterable[str]) -> Filter:
    """Parse words such as `state:failed` into the conditions of `hf.list`. A run in one of several states matches."""
    chosen: dict[str, Any] = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon:
            raise Refusal(f"{word!r} is not a filter; {_advice(word)}")
        if not value:
            raise Refusal(f"the filter {word!r} has no value")
        _add(chosen, name, value)
    return cast("Filter", chosen)


def _add(chosen: dict[str, Any], name: str, value: str) -> None:
    if name == "state":
        chosen["state"] = chosen.get("state", frozenset()) | {_state(one) for one in value.split(",")}
        return
    if name.startswith("tag.") and len(name) > 4:
        chosen["tags"] = chosen.get("tags", {}) | {name[4:]: value}
        return
    if name not in _PARSERS:
        raise Refusal(f"there is no filter {name!r}; use {WORDS}")
    condition = "parent_id" if name == "parent" else name
    if condition in chosen:
        raise Refusal(f"the filter {name}: is given twice")
    try:
        parsed = _PARSERS[name](value)
    except ValueError as error:
        raise Refusal(f"{name}:{value}: {error}") from error
    if parsed is not None:
        chosen[condition] = parsed


def _state(name: str) -> RunState:
    try:
        return RunState(name)
    except ValueError:
        near = nearest(name, RunState)
        meant = f" (did you mean {near}?)" if near else ""
        raise Refusal(f"there is no state {name!r}{meant}; the states are {', '.join(RunState)}") from None


def _truth(word: str) -> bool:
    if word not in ("true", "false"):
        raise ValueError("expected true or false")
    return word == "true"


def _type(pattern: str) -> str | None:
    if pattern == "*":
        return None
    if "*" in pattern.removesuffix(".*"):
        raise Refusal(f"type:{pattern}: a star is allowed only at the end, after a dot, as in billing.*")
    return pattern


_PARSERS: dict[str, Callable[[str], Any]] = {
    "type": _type,
    "key": str,
    "parent": str,
    "since": parse_since,
    "until": parse_moment,
    "deleted": _truth,
}


def _advice(word: str) -> str:
    if word in list(RunState):
        return f"did you mean state:{word}?"
    if "." in word:
        return f"did you mean type:{word}?"
    return f"use {WORDS}"


filter_options = combined(
    click.option("--state", "states", metavar="STATE", multiple=True, help="In this state; may be repeated."),
    click.option(
        "--type",
        metavar="TYPE",
        shell_complete=completing.types,
        help="Of this type; billing.* matches all types that begin with billing.",
    ),
    click.option("--key", metavar="KEY", help="The run with this key."),
    click.option("--tag", "tags", metavar="NAME=VALUE", multiple=True, help="With this tag; may be repeated."),
    click.option("--parent", metavar="RUN", help="Children of this run."),
    click.option(
        "--since", metavar="TIME", help="Created in the last 2h or 3d, or since a moment such as 2030-01-31T09:00."
    ),
    click.option("--until", metavar="MOMENT", help="Created before this moment."),
    click.option("--deleted", is_flag=True, help="Only runs that are deleted but not removed yet."),
)
"""Adds the filters as options to a command: `--state failed` means `state:failed`."""


def chosen_filter(words: Iterable[str], options: Mapping[str, Any]) -> Filter:
    """Return the conditions that the words of a command and its filter options give together."""
    typed = [*words, *(f"state:{state}" for state in options["states"])]
    typed += ["tag.{}:{}".format(*parse_pair(tag, "--tag")) for tag in options["tags"]]
    typed += [f"{name}:{options[name]}" for name in ("type", "key", "parent", "since", "until") if options[name]]
    typed += ["deleted:true"] if options["deleted"] else []
    return parse_filter(typed)
