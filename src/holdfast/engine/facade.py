"""Facades: blocking versions of asynchronous objects.

A facade has no rules of its own. Each of its methods runs the method of the same name of its target on a private event
loop, while the calling thread waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.engine.async_list import AsyncList
from holdfast.engine.private_loop import PrivateLoop

PAGE = 100
"""Number of items of a list that are fetched at once."""

P = ParamSpec("P")
T = TypeVar("T")


class Facade:
    """A blocking version of `target`, which runs on `loop`. Error messages call it `word`."""

    def __init__(self, word: str, target: Any, loop: PrivateLoop) -> None:
        self._word = word
        self._target = target
        self._loop = loop

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method `name` of the target and return its result."""
        self._loop.check(f"{self._word}.{name}")
        return self._loop.run(getattr(self._target, name)(*args, **kwargs))

    def _each(self, name: str, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Call the method `name` of the target and iterate over its items."""
        self._loop.check(f"{self._word}.{name}")
        source = getattr(self._target, name)(*args, **kwargs)

        def each() -> Iterator[Any]:
            while page := self._loop.run(_page(source)):
                yield from page

        return each()


async def _page(source: AsyncIterator[T]) -> list[T]:
    page: list[T] = []
    async for one in source:
        page.append(one)
        if len(page) == PAGE:
            break
    return page


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Make a method of a facade from a coroutine method of its target."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self._call(method.__name__, *args, **kwargs)
        return answer

    return call


def iterating(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Make a method of a facade that returns an iterator, from a method that returns an async iterator."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._each(method.__name__, *args, **kwargs)

    return call


def listing(method: Callable[Concatenate[Any, P], AsyncList[T]]) -> Callable[Concatenate[Any, P], list[T]]:
    """Make a method of a facade that returns a list, from a method that returns a short `AsyncList`."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return list(self._each(method.__name__, *args, **kwargs))

    return call
