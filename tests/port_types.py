"""The types that cross the store port, found in its signatures and in the unions of commands and questions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from holdfast.core.commands import AnyCommand, Command
from holdfast.core.ports import Database, Reader, Store, Transfer
from holdfast.core.questions import AnyAwaited, AnyListing, AnyStat, Awaited, Listing, Pages, Stat

UNIONS: dict[Any, Any] = {Command: AnyCommand, Stat: AnyStat, Listing: AnyListing, Awaited: AnyAwaited}
"""The bases of commands and questions, and the closed union of each."""

_NOT_VALUES = (Store, Transfer, Database, NoneType)


def members(union: Any) -> tuple[type, ...]:
    return get_args(union)


def answer_of(kind: type) -> Any:
    """Return the type of the answer to a command or question: the parameter of its base class."""
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
    (answer,) = get_args(base)
    return Sequence[answer] if get_origin(base) is Pages else answer  # type: ignore[valid-type]


def port_types() -> dict[str, Any]:
    """Return every type that a caller or a store sends, by its name."""
    found = [kind for union in UNIONS.values() for kind in members(union)]
    crossing = [*found, *map(answer_of, found), *_in_signatures()]
    return {_name(kind): kind for kind in crossing if kind not in _NOT_VALUES}


def _in_signatures() -> Iterator[Any]:
    for protocol in (Reader, Store, Transfer):
        for member in vars(protocol).values():
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function) and not function.__name__.startswith("_"):
                for hint in get_type_hints(function).values():
                    yield from _values_in(hint)


def _values_in(hint: Any) -> Iterator[Any]:
    if (
        isinstance(hint, TypeVar)
        or get_origin(hint) in UNIONS
        or any(get_origin(one) is Callable for one in get_args(hint))
    ):
        return  # an optional function, such as one that shows progress, stays in its process
    if get_origin(hint) in (Awaitable, Callable, Sequence):
        arguments, *rest = get_args(hint)
        for part in [*(arguments if isinstance(arguments, list) else [arguments]), *rest]:
            yield from _values_in(part)
    elif not any(part in _NOT_VALUES[:-1] for part in get_args(hint)):
        yield hint


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("holdfast.core.", "")
