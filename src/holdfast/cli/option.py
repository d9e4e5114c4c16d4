"""An option: a flag of the command line that sets a setting for this one command.

The value is stored in the context under the setting's key. Without a flag, the configuration decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.config import settings
from holdfast.config.kind import Choice, Names
from holdfast.config.settings import Setting

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]  # generic only for type checkers of newer clicks
else:
    _ParamType = click.ParamType


# An empty string counts as not typed, as in environment variables: `--url "$URL"` with URL unset.
_NOT_TYPED = (None, (), False, "")


class SettingType(_ParamType):
    """Parses a flag like a variable or a line of the settings file."""

    def __init__(self, setting: Setting[Any]) -> None:
        self.name = setting.kind.metavar
        self._setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._setting.kind.parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


def setting_option(setting: Setting[Any]) -> Callable[[F], F]:
    """Add the flag of a setting to a command, as in `@setting_option(settings.THREADS)`."""
    return click.option(setting.flag, **_attributes(setting))


def combined(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator that adds several arguments and options to a command, in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def global_options(*, is_shown: bool = False) -> list[click.Option]:
    """Return the global options. Each command takes them as well, so that their position does not matter."""

    def option(*names: str, **attributes: Any) -> click.Option:
        return click.Option(names, **{"expose_value": False, "hidden": not is_shown, **attributes})

    return [
        option("--url", **_attributes(settings.URL)),
        option(
            "--json",
            is_flag=True,
            callback=_noted(settings.OUTPUT, lambda _: "json"),
            help="Write JSON; the same as -o json.",
        ),
        option("-o", "--output", **_attributes(settings.OUTPUT)),
        option(
            "-q",
            "--quiet",
            is_flag=True,
            callback=_noted(settings.VERBOSITY, lambda _: -1),
            help="Print only data and errors.",
        ),
        option(
            "-v",
            "--verbose",
            count=True,
            callback=_noted(settings.VERBOSITY, lambda count: min(count, 2)),
            help="Print more; -vv prints everything, including tracebacks.",
        ),
        option("--color", **_attributes(settings.COLOR)),
    ]


def _attributes(setting: Setting[Any]) -> dict[str, Any]:
    kind = setting.kind
    many = isinstance(kind, Names)
    return {
        "type": click.Choice(kind.words) if isinstance(kind, Choice) else SettingType(setting),
        "multiple": many,
        "callback": _noted(setting, (lambda given: sum(given, ())) if many else (lambda given: given)),
        "expose_value": False,
        "help": setting.help,
    }


def _noted(setting: Setting[Any], meant: Callable[[Any], object]) -> Callable[..., None]:
    """Return a click callback that stores the value of a flag, if the flag was typed."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value not in _NOT_TYPED:
            _note(context, setting, meant(value), max(parameter.opts, key=len))

    return callback


def _note(context: click.Context, setting: Setting[Any], value: object, flag: str) -> None:
    """Store the value of a flag. Raises `UsageError` if two flags contradict each other."""
    said: dict[str, tuple[str, object]] = context.meta.setdefault(f"holdfast {context.command_path}", {})
    other, chosen = said.setdefault(setting.key, (flag, value))
    if chosen != value:
        raise click.UsageError(f"{other} and {flag} contradict each other; give one of them", context)
    # A new dict for each context: flags after one command must not affect another.
    context.obj = {**(context.obj or {}), setting.key: value}
