"""Startables: decorated functions, and calls of them with bound arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

R_co = TypeVar("R_co", covariant=True)
Bind_co = TypeVar("Bind_co", covariant=True)


class Startable(Protocol[Bind_co]):
    """A workflow, a task, or a bound call: anything that `hf.start` takes besides the name of a type.

    In this reference `Startable[R]` is one that returns an `R`. In annotations, write `Startable[Callable[[*Ts],
    Call[R]]]`: type checkers then check the positional arguments and know the result.
    """

    @property
    def bind(self) -> Bind_co:
        """Give it arguments, by position or by name, to get a `Call`."""
        ...


class Call(Generic[R_co]):
    """A workflow, task or step together with its arguments: `checkout.bind(order="A-1")`.

    Pass it to `hf.start`, `hf.start_in`, `hf.start_many`, `hf.execute`, `ctx.start`, `ctx.call` or `ctx.step`, without
    further arguments. `target` is what is called, `args` and `kwargs` are the arguments.
    """

    __slots__ = ("args", "kwargs", "target")

    def __init__(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.target = target
        self.args = args
        self.kwargs = kwargs

    def bind(self) -> Call[R_co]:
        """Return the call itself. It takes no further arguments."""
        return self

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"<call of {self.target!r} with ({', '.join(given)})>"
