"""An option: a flag of the command line. Its value is a setting of this one command, or an argument of its function.

The flag of a setting stores its value in the context, under the setting's key. Without a flag, the configuration
decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from holdfast.config import settings
from holdfast.config.configuration import Configuration
from holdfast.config.kind import Choice, Names
from holdfast.config.settings import Setting
from holdfast.core.length import parse_length

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]  # generic only for type checkers of newer clicks
else:
    _ParamType = click.ParamType


# An empty string counts as not typed, as in environment variables: `--url "$URL"` with URL unset.
_NOT_TYPED = (None, (), False, "")

_START_FLAGS = {"ready_at": "--at", "parent_id": "--parent", "tags": "--tag"}
"""Flags that are shorter than the name of their option."""


@dataclass(frozen=True)
class Settings:
    """Settings that every command has. `url` is None unless it was typed; `verbosity` is -1 (quiet) to 2."""

    url: str | None = None
    output: str = settings.OUTPUT.default
    verbosity: int = settings.VERBOSITY.default
    color: str = settings.COLOR.default
    configuration: Configuration = field(default_factory=Configuration)

    @classmethod
    def of(cls, flags: Mapping[str, object]) -> Settings:
        """Return the settings for typed flags, given by the keys of their settings. Raises `InvalidRequest`."""
        configuration = Configuration(flags)
        return cls(
            url=configuration[settings.URL] if settings.URL.key in flags else None,
            output=configuration[settings.OUTPUT],
            verbosity=configuration[settings.VERBOSITY],
            color=configuration[settings.COLOR],
            configuration=configuration,
        )

    @property
    def is_quiet(self) -> bool:
        return self.verbosity < 0


def parse_moment(text: str) -> datetime:
    """Parse a date, or date and time, in ISO form. Without a zone it is local time. Raises `ValueError`."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is not a valid moment; write 2030-01-31, 2030-01-31T09:00 or 2030-01-31T09:00Z"
        ) from error


def parse_since(text: str) -> datetime | timedelta:
    """Parse a moment, or a length of time before now. Raises `ValueError`."""
    if re.match(r"\d{4}-", text.strip()):
        return parse_moment(text)
    try:
        return parse_length(text)
    except ValueError as error:
        raise ValueError(f"{error}, or a moment such as 2030-01-31T09:00") from None


class ParsedType(_ParamType):
    """The type of an option whose value a function parses. The function raises `ValueError` for a bad value."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


LENGTH = ParsedType("time", parse_length)
MOMENT = ParsedType("moment", parse_moment)

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def combined(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator that adds several arguments and options to a command, in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def setting_options(*chosen: Setting[Any]) -> Callable[[F], F]:
    """Add the flags of settings to a command, as in `@setting_options(settings.THREADS)`."""
    return combined(*(click.option(setting.flag, **_setting_attributes(setting)) for setting in chosen))


def start_options(producer: type) -> Callable[[F], F]:
    """Give a command the options that a producer has. Each reaches the command under its name in Python, or is None."""
    from holdfast.core.intent import OPTIONS

    hints = get_type_hints(producer)
    return combined(
        *(
            click.option(
                _START_FLAGS.get(name, f"--{name.replace('_', '-')}"),
                name,
                help=OPTIONS[name].help,
                **_start_attributes(name, hints[name]),
            )
            for name in OPTIONS
            if name in hints
        )
    )


def _start_attributes(name: str, hint: Any) -> dict[str, Any]:
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


def global_options(*, is_shown: bool = False) -> list[click.Option]:
    """Return the global options. Each command takes them as well, so that their position does not matter."""

    def option(*names: str, **attributes: Any) -> click.Option:
        return click.Option(names, **{"expose_value": False, "hidden": not is_shown, **attributes})

    return [
        option("--url", **_setting_attributes(settings.URL)),
        option(
            "--json",
            is_flag=True,
            callback=_storing(settings.OUTPUT, lambda _: "json"),
            help="Write JSON; the same as -o json.",
        ),
        option("-o", "--output", **_setting_attributes(settings.OUTPUT)),
        option(
            "-q",
            "--quiet",
            is_flag=True,
            callback=_storing(settings.VERBOSITY, lambda _: -1),
            help="Print only data and errors.",
        ),
        option(
            "-v",
            "--verbose",
            count=True,
            callback=_storing(settings.VERBOSITY, lambda count: min(count, 2)),
            help="Print more; -vv prints everything, including tracebacks.",
        ),
        option("--color", **_setting_attributes(settings.COLOR)),
    ]


def _setting_attributes(setting: Setting[Any]) -> dict[str, Any]:
    kind = setting.kind
    many = isinstance(kind, Names)

    def parse(text: str) -> Any:
        try:
            return kind.parse(text)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from error

    return {
        "type": click.Choice(kind.words) if isinstance(kind, Choice) else ParsedType(kind.metavar, parse),
        "multiple": many,
        "callback": _storing(setting, (lambda given: sum(given, ())) if many else (lambda given: given)),
        "expose_value": False,
        "help": setting.help,
    }


def _storing(setting: Setting[Any], value_of: Callable[[Any], object]) -> Callable[..., None]:
    """Return a click callback that stores the value of a flag, if the flag was typed.

    It raises `UsageError` if two flags contradict each other.
    """

    def store(context: click.Context, parameter: click.Parameter, typed: Any) -> None:
        if typed in _NOT_TYPED:
            return
        flag, value = max(parameter.opts, key=len), value_of(typed)
        flags: dict[str, tuple[str, object]] = context.meta.setdefault(f"holdfast {context.command_path}", {})
        other, chosen = flags.setdefault(setting.key, (flag, value))
        if chosen != value:
            raise click.UsageError(f"{other} and {flag} contradict each other; give one of them", context)
        # A new dict for each context: flags after one command must not affect another.
        context.obj = {**(context.obj or {}), setting.key: value}

    return store
