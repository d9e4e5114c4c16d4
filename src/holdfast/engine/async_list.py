"""An async list: what a `list` method returns, to be iterated over or awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from holdfast.engine.session import refuse_workflow_code

T = TypeVar("T")


class AsyncList(AsyncIterator[T], Generic[T]):
    """The result of every `list` method: iterate over it with `async for`, or `await` it to get a list.

        async for info in hf.list(state="failed"): ...
        failed = await hf.list(state="failed")

    Iterating reads from the store page by page. Use each one once.
    """

    def __init__(self, items: AsyncIterator[T]) -> None:
        refuse_workflow_code()  # here, because the call that made the list is known here
        self._items = items

    @classmethod
    def of(cls, read: Callable[[], Awaitable[Sequence[T]]]) -> AsyncList[T]:
        """A list that is read at once, when the first item is asked for."""

        async def items() -> AsyncIterator[T]:
            for item in await read():
                yield item

        return cls(items())

    async def __anext__(self) -> T:
        return await anext(self._items)

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._all().__await__()

    async def _all(self) -> list[T]:
        return [item async for item in self._items]
