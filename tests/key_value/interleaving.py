"""Interleavings: racers on one dictionary, whose driver calls follow each other in every possible order.

    async def scene(arena: Arena, order: CallOrder) -> None:
        one, other = await arena.stores(2)
        await order.race(one.apply(…), other.apply(…))
        …                                             # check what came of it

    await in_every_order(scene)

Each driver call is atomic, so the order of the calls is all that can differ between two races.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from holdfast.core.checkpoint import ClaimRequest
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Answers, ClaimAnswer, Committed, Driver, Gain, Part, Read
from holdfast.testing.contract import SettableClock
from holdfast.testing.patience import guard
from tests.key_value.wrapped_driver import WrappedDriver

_gate: ContextVar[Callable[[str], Awaitable[None]] | None] = ContextVar("gate", default=None)


async def turn(name: str) -> None:
    """Wait until it is this racer's turn. Outside of a race, continue at once."""
    gate = _gate.get()
    if gate is not None:
        await gate(name)


class TurnDriver(WrappedDriver):
    """A driver that waits for its turn before every call.

    With `is_lossy`, every commit of a race loses its first answer and is repeated. Others may write in between.
    """

    def __init__(self, inner: Driver, *, is_lossy: bool) -> None:
        super().__init__(inner)
        self._is_lossy = is_lossy

    async def load(self, reads: Sequence[Read]) -> Answers:
        await turn("load")
        return await super().load(reads)

    async def commit(self, parts: Sequence[Part | Gain], hint: bytes = b"") -> Committed:
        await turn("commit")
        committed = await super().commit(parts, hint)
        if not self._is_lossy or _gate.get() is None:
            return committed
        await turn("commit again")
        return (await super().commit(parts, hint))._replace(is_repeat=True)

    async def claim(self, request: ClaimRequest) -> ClaimAnswer | None:
        await turn("claim")
        return await super().claim(request)


class CallOrder:
    """One order of calls. `choices` decide whose turn it is, at each point where several racers can continue.

    After the last choice, a racer continues until it has ended. No order takes the turn from a racer that could
    continue more than `switches` times.
    """

    def __init__(self, choices: Sequence[int], switches: int) -> None:
        self.taken: list[tuple[int, int]] = []
        """The choices of this order, each with the number of racers that could be chosen."""
        self.calls: list[str] = []
        """The calls in this order, each with the number of its racer."""
        self._choices = choices
        self._switches = switches
        self._last = 0
        self._waiting: dict[int, tuple[str, asyncio.Event]] = {}

    async def race(self, *racers: Coroutine[Any, Any, Any]) -> list[Any]:
        """Let racers race in this order, and return their answers."""
        tasks = [asyncio.create_task(self._begun(number, racer)) for number, racer in enumerate(racers)]
        async with guard("all racers have ended"):
            while ready := await self._ready(tasks):
                self._last = self._next(ready)
                name, go = self._waiting.pop(self._last)
                self.calls.append(f"{self._last}: {name}")
                go.set()
        return [task.result() for task in tasks]

    async def _begun(self, number: int, racer: Coroutine[Any, Any, Any]) -> Any:
        async def gate(name: str) -> None:
            go = asyncio.Event()
            self._waiting[number] = name, go
            await go.wait()

        _gate.set(gate)  # for this task only
        return await racer

    async def _ready(self, tasks: Sequence[asyncio.Task[Any]]) -> list[int]:
        """Wait until every racer has ended or waits for its turn. Return those that wait."""
        while any(number not in self._waiting and not task.done() for number, task in enumerate(tasks)):
            await asyncio.sleep(0)
        return sorted(self._waiting)

    def _next(self, ready: Sequence[int]) -> int:
        if self._last in ready:
            ready = (
                [self._last, *(number for number in ready if number != self._last)] if self._switches else [self._last]
            )
        choice = self._choices[len(self.taken)] if len(self.taken) < len(self._choices) else 0
        self.taken.append((choice, len(ready)))
        if ready[choice] != self._last and self._last in ready:
            self._switches -= 1
        return ready[choice]


class Arena:
    """Stores on one dictionary, each like a process of its own."""

    def __init__(self, *, is_lossy: bool = False) -> None:
        self.clock = SettableClock()
        self._data = Dictionary()
        self._is_lossy = is_lossy

    async def stores(self, count: int) -> list[KeyValueStore]:
        stores = [KeyValueStore(self._driver, clock=self.clock) for _ in range(count)]
        for store in stores:
            await store.open()
        return stores

    def _driver(self) -> Driver:
        return TurnDriver(DictionaryDriver(self._data, clock=self.clock), is_lossy=self._is_lossy)


Scene = Callable[[Arena, CallOrder], Awaitable[None]]


async def in_every_order(scene: Scene, *, is_lossy: bool, switches: int) -> int:
    """Play a scene in every order with at most this many switches. Return the number of orders."""
    return await each_order(lambda order: scene(Arena(is_lossy=is_lossy), order), CallOrder, switches)


Order = TypeVar("Order", bound=CallOrder)


async def each_order(
    play: Callable[[Order], Awaitable[None]], make: Callable[[Sequence[int], int], Order], switches: int
) -> int:
    """Play a race in every order that `make` can make of choices. Return the number of orders."""
    choices: list[int] = []
    count = 0
    while True:
        order = make(choices, switches)
        try:
            await play(order)
        except BaseException as error:
            error.add_note(f"in this order of calls: {', '.join(order.calls)}")
            raise
        count += 1
        taken = order.taken
        while taken and taken[-1][0] + 1 >= taken[-1][1]:
            taken.pop()
        if not taken:
            return count
        choices = [*(choice for choice, _ in taken[:-1]), taken[-1][0] + 1]
