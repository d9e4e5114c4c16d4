"""An option: a flag of the command line that says what a setting is, for this one command.

It is noted in the context under the setting's key. What was not typed is left to the configuration.
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


# An empty text is one too, as in variables: `--url "$URL"` where nobody has set URL.
_NOT_TYPED = (None, (), False, "")


class SettingType(_ParamType):
    """Reads what was typed as a variable or a file would be read."""

    def __init__(self, setting: Setting[Any]) -> None:
        self.name = setting.kind.metavar
        self._setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._setting.kind.parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


def setting_option(setting: Setting[Any]) -> Callable[[F], F]:
    """Give a command the flag of a setting, as in `@setting_option(settings.THREADS)`."""
    return click.option(setting.flag, **_attributes(setting))


def global_options(*, is_shown: bool = False) -> list[click.Option]:
    """The options of `holdfast` itself. Each command takes them as well, so that their place does not matter."""

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
            help="Say nothing but data and errors.",
        ),
        option(
            "-v",
            "--verbose",
            count=True,
            callback=_noted(settings.VERBOSITY, lambda count: min(count, 2)),
            help="Say more; -vv says everything, tracebacks included.",
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
    """What to do with what was typed, if it was."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value not in _NOT_TYPED:
            _note(context, setting, meant(value), max(parameter.opts, key=len))

    return callback


def _note(context: click.Context, setting: Setting[Any], value: object, flag: str) -> None:
    """Note what a flag says. Two that contradict each other are a mistake."""
    said: dict[str, tuple[str, object]] = context.meta.setdefault(f"holdfast {context.command_path}", {})
    other, chosen = said.setdefault(setting.key, (flag, value))
    if chosen != value:
        raise click.UsageError(f"{other} and {flag} contradict each other; give one of them", context)
    # Another one for each context: what stands after a command is not for the next.
    context.obj = {**(context.obj or {}), setting.key: value}
