"""A facade: something asynchronous, for code that blocks.

It decides nothing and does nothing itself: each of its methods is the method of the same name behind it, run on a
private event loop while the calling thread waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.engine.async_list import AsyncList
from holdfast.engine.private_loop import PrivateLoop

PAGE = 100
"""How many items of a list are fetched at once."""

P = ParamSpec("P")
T = TypeVar("T")


class Facade:
    """Something asynchronous, called `word` by its users, and the loop that it lives on."""

    def __init__(self, word: str, target: Any, loop: PrivateLoop) -> None:
        self._word = word
        self._target = target
        self._loop = loop

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """What a method of that name comes to."""
        self._loop.check(f"{self._word}.{name}")
        return self._loop.run(getattr(self._target, name)(*args, **kwargs))

    def _each(self, name: str, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """What a method of that name gives, one by one."""
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
    """The method of a facade that is a coroutine of what is behind it."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self._call(method.__name__, *args, **kwargs)
        return answer

    return call


def iterating(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Likewise, of one that gives many."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._each(method.__name__, *args, **kwargs)

    return call


def listing(method: Callable[Concatenate[Any, P], AsyncList[T]]) -> Callable[Concatenate[Any, P], list[T]]:
    """The method of a facade whose list is short, and read at once."""

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return list(self._each(method.__name__, *args, **kwargs))

    return call
