"""Filters: select the runs of a command, as in `state:failed type:billing.* tag.shop:x key:… since:2h`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import click

from holdfast.cli import completing
from holdfast.cli.exits import Refusal
from holdfast.cli.option import combined
from holdfast.cli.payloads import parse_pair
from holdfast.cli.times import parse_moment, parse_since
from holdfast.core.states import RunState
from holdfast.core.suggestion import nearest

WORDS = "state: type: key: tag.NAME: parent: since: until: deleted:"


@dataclass(frozen=True)
class RunFilter:
    """The conditions that `engine.list` takes. A run must match all of them, and one of several states."""

    states: frozenset[RunState] = frozenset()
    type: str | None = None
    key: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    parent_id: str | None = None
    since: datetime | timedelta | None = None
    until: datetime | None = None
    deleted: bool | None = None

    @property
    def is_empty(self) -> bool:
        return self == RunFilter()

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for `engine.list`."""
        return {
            "state": sorted(self.states) or None,
            "type": self.type,
            "key": self.key,
            "tags": self.tags,
            "parent_id": self.parent_id,
            "since": self.since,
            "until": self.until,
            **({"deleted": True} if self.deleted else {}),
        }


def parse_filter(words: Iterable[str]) -> RunFilter:
    """Parse words such as `state:failed` into a filter."""
    chosen = RunFilter()
    for word in words:
        name, colon, value = word.partition(":")
        if not colon:
            raise Refusal(f"{word!r} is not a filter; {_advice(word)}")
        if not value:
            raise Refusal(f"the filter {word!r} has no value")
        chosen = _with(chosen, name, value)
    return chosen


def _with(chosen: RunFilter, name: str, value: str) -> RunFilter:
    if name == "state":
        return replace(chosen, states=chosen.states | {_state(one) for one in value.split(",")})
    if name.startswith("tag.") and len(name) > 4:
        return replace(chosen, tags=chosen.tags | {name[4:]: value})
    fields: dict[str, tuple[str, Callable[[str], Any]]] = {
        "type": ("type", _type),
        "key": ("key", str),
        "parent": ("parent_id", str),
        "since": ("since", parse_since),
        "until": ("until", parse_moment),
        "deleted": ("deleted", _truth),
    }
    if name not in fields:
        raise Refusal(f"there is no filter {name!r}; use {WORDS}")
    attribute, parse = fields[name]
    if getattr(chosen, attribute) is not None:
        raise Refusal(f"the filter {name}: is given twice")
    try:
        parsed = parse(value)
    except ValueError as error:
        raise Refusal(f"{name}:{value}: {error}") from error
    changes: dict[str, Any] = {attribute: parsed}
    return replace(chosen, **changes)


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


def words_of_options(options: dict[str, Any]) -> Sequence[str]:
    """Return the filter options as words, which `parse_filter` takes with the other words."""
    words = [f"state:{state}" for state in options["states"]]
    words += ["tag.{}:{}".format(*parse_pair(tag, "--tag")) for tag in options["tags"]]
    words += [f"{name}:{options[name]}" for name in ("type", "key", "parent", "since", "until") if options[name]]
    words += ["deleted:true"] if options["deleted"] else []
    return words
