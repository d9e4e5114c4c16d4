"""A signature: a function's parameters as one JSON object, so that any language can start a run."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.core.codec import VALUE_LIMIT_BYTES, ArgumentsCodec, Codec, name_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.suggestion import refuse_unknown


class Signature:
    """The parameters of a function as one JSON object, by name. Build it once per function.

    The first `skip` parameters, such as the context, belong to holdfast and are not part of the object.
    """

    __slots__ = (
        "_arguments",
        "_codec",
        "_is_positional",
        "_keywords",
        "_leading",
        "_positional",
        "_required",
        "name",
        "names",
        "result",
    )

    def __init__(self, function: Callable[..., Any], *, skip: int = 0) -> None:
        self.name = name_of(function)
        parameters = _own_parameters(function, self.name, skip)
        hints = hints_of(function)
        self.names = tuple(each.name for each in parameters)
        self.result: Codec[Any] = result_codec(function)
        self._positional = {each.name: each.default for each in parameters if each.kind is not each.KEYWORD_ONLY}
        self._keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        self._required = [each.name for each in parameters if each.default is each.empty]
        self._leading = sum(name in self._positional for name in self._required)
        self._is_positional = self._leading == len(self._required)
        # UNSET is neither encoded nor decoded. It marks an argument that is left to its default. A struct needs fields
        # without a default first. Positional parameters keep their order, because Python has the same rule.
        hinted = {each.name: self._hint(each, hints) for each in parameters}
        fields: list[Any] = [(name, hint) for name, hint in hinted.items() if name in self._required]
        fields += [(name, hint, UNSET) for name, hint in hinted.items() if name not in self._required]
        self._arguments = msgspec.defstruct(self.name, fields, forbid_unknown_fields=True)
        self._codec: Codec[Any] = ArgumentsCodec(self._arguments, f"{self.name}({', '.join(self.names)})")

    def encode(
        self,
        args: tuple[Any, ...],
        what: str = "payload",
        limit: int = VALUE_LIMIT_BYTES,
        *,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the arguments as a JSON object. Arguments left to their defaults are omitted."""
        if not kwargs and self._is_positional and self._leading <= len(args) <= len(self._positional):
            return self._codec.encode(self._arguments(*args), what, limit)
        kwargs = kwargs or {}
        self.check(args, kwargs)
        return self._codec.encode(
            self._arguments(**dict(zip(self._positional, args, strict=False)), **kwargs), what, limit
        )

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments whose number or names do not fit the function."""
        if not kwargs.keys() <= set(self.names):
            refuse_unknown("parameter", kwargs, self.names, of=self.name)
        if len(args) > len(self._positional):
            raise InvalidRequest(self._too_many(len(args)))
        by_position = list(self._positional)[: len(args)]
        if twice := [name for name in by_position if name in kwargs]:
            raise InvalidRequest(f"{self.name} gets {', '.join(twice)} twice: by position and by name")
        if missing := [name for name in self._required if name not in kwargs and name not in by_position]:
            raise InvalidRequest(self._missing(missing))

    def decode(self, text: str, what: str = "payload") -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments in a JSON object: all positional ones, and the keyword-only ones that are given."""
        arguments = self._codec.decode(text, what)
        args = [
            default if (given := getattr(arguments, name)) is UNSET else given
            for name, default in self._positional.items()
        ]
        kwargs = {name: given for name in self._keywords if (given := getattr(arguments, name)) is not UNSET}
        return tuple(args), kwargs

    def _hint(self, parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
        hint = hints.get(parameter.name, Any)
        if parameter.default is None:  # `x: int = None` is common, so None must be accepted
            hint = typing.Union[hint, None]  # noqa: UP007 - `|` does not take every hint, such as a forward reference
        try:
            Codec(hint)
        except InvalidRequest as error:
            raise InvalidRequest(f"parameter {parameter.name!r} of {self.name}: {error}") from error
        return hint

    def _missing(self, missing: list[str]) -> str:
        text = f"{self.name} is missing arguments: {', '.join(missing)}"
        by_name = [name for name in missing if name in self._keywords]
        return f"{text}; pass {', '.join(by_name)} by name, with bind({by_name[0]}=…)" if by_name else text

    def _too_many(self, given: int) -> str:
        names = list(self._positional)
        text = f"{self.name} takes {len(names)} arguments ({', '.join(names)}), but {given} were given"
        return f"{text}; pass {', '.join(self._keywords)} by name, with bind(…)" if self._keywords else text


def result_codec(function: Callable[..., Any]) -> Codec[Any]:
    """Return the codec for the result of `function`, by its annotation."""
    try:
        return Codec(hints_of(function).get("return", Any))
    except InvalidRequest as error:
        raise InvalidRequest(f"the result of {name_of(function)}: {error}") from error


def hints_of(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, each resolved on its own. Those that cannot be resolved are omitted."""
    if isinstance(function, type):
        return {**hints_of(vars(function).get("__init__")), "return": function}
    while isinstance(function := inspect.unwrap(function), partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    local = {}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        try:
            local[name] = cell.cell_contents
        except ValueError:  # not assigned yet, such as the function's own name while it is decorated
            continue
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone: Any = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(alone, function.__globals__, local, include_extras=True)
        except Exception:  # noqa: BLE001, S112 - any text can be an annotation, such as a name only mypy imports
            continue
    return hints


def _own_parameters(function: Callable[..., Any], name: str, skip: int) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the parameters of {name} cannot be determined: {error}") from error
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
            raise InvalidRequest(
                f"{name} takes {stars}{each.name}, but its payload is a JSON object of named parameters; "
                f"name each of them, or take one list or dict"
            )
    if any(each.kind is each.KEYWORD_ONLY for each in parameters[:skip]) or len(parameters) < skip:
        raise InvalidRequest(f"{name} must first take {skip} positional parameter(s) for holdfast, such as ctx")
    return parameters[skip:]
