"""Startables: decorated functions, and calls of them with bound arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

R_co = TypeVar("R_co", covariant=True)
Bind_co = TypeVar("Bind_co", covariant=True)


class Startable(Protocol[Bind_co]):
    """A workflow, a task, or a bound call: anything that `hf.start` takes besides the name of a type.

    It is generic over its own `bind`, because that is the function's signature as both mypy and pyright see it: with
    `Startable[Callable[[*Ts], Call[R]]]` they check positional arguments, let those with defaults be left out, and know
    the result.
    """

    @property
    def bind(self) -> Bind_co:
        """Give arguments, by position or by name, and get a `Call`."""
        ...


class Call(Generic[R_co]):
    """A workflow, task or step with its arguments: `checkout.bind(order="A-1")`.

    Pass it to `start`, `start_in`, `start_many`, `execute`, `ctx.start`, `ctx.call` or `ctx.step`, without any further
    arguments.
    """

    __slots__ = ("args", "kwargs", "target")

    def __init__(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.target = target
        self.args = args
        self.kwargs = kwargs

    def bind(self) -> Call[R_co]:
        """Return the call itself: it takes no further arguments."""
        return self

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"<call of {self.target!r} with ({', '.join(given)})>"
