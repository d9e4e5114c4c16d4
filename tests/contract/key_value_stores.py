"""Key-value stores for machines that compare a store with the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from holdfast.core.checkpoint import Checkpoint, Verdicts
from holdfast.core.ports import Store
from holdfast.stores.kv import KeyValueStore
from holdfast.stores.kv.decision import Decided
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Answers, Driver, Read, Reserve
from holdfast.stores.redis import RedisDriver
from holdfast.testing.contract import SettableClock
from tests.key_value.wrapped_driver import WrappedDriver
from tests.redis import Namespaces


class GaplessDriver(WrappedDriver):
    """Numbers events and dead letters as the model does. A real driver skips numbers that an operation did not use.

    `counters` are the last numbers in use. Drivers of one store share them, and `without_gaps` keeps them.
    """

    def __init__(self, inner: Driver, counters: dict[str, int]) -> None:
        super().__init__(inner)
        self._counters = counters

    async def load(self, reads: Sequence[Read]) -> Answers:
        found = await super().load([read for read in reads if not isinstance(read, Reserve)])
        others = iter(found.answers)
        answers = [self._numbers(read) if isinstance(read, Reserve) else next(others) for read in reads]
        return Answers(found.now, answers)

    def _numbers(self, read: Reserve) -> range:
        first = self._counters.get(read.counter, 0) + 1
        return range(first, first + read.count)


Kv = TypeVar("Kv", bound=KeyValueStore)


def without_gaps(make: Callable[[Callable[[], Driver]], Kv], make_driver: Callable[[], Driver]) -> Kv:
    """Return a store that counts only the numbers that its operations have used.

    A commit does not show them all: an import also gives numbers to events that only the history of a run names.
    """
    counters: dict[str, int] = {}
    store = make(lambda: GaplessDriver(make_driver(), counters))
    decide = store._decisions.decide

    async def counted(*given: Any, **named: Any) -> Decided[Any]:
        decided = await decide(*given, **named)
        if decided.committed is not None:
            for counter, last in decided.space._last_numbers.items():
                counters[counter] = max(last, counters.get(counter, 0))
        return decided

    setattr(store._decisions, "decide", counted)  # noqa: B010 - a type checker refuses the assignment of a method
    return store


class ForgetfulStore(KeyValueStore):
    """Remembers nothing of held runs, like a process that has just reconnected."""

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        self._held.clear()
        return await super().checkpoint(checkpoints)


def dictionary_store(clock: SettableClock) -> Store:
    return without_gaps(lambda driver: KeyValueStore(driver, clock=clock), _on_dictionary(clock))


def forgetful_store(clock: SettableClock) -> Store:
    return without_gaps(lambda driver: ForgetfulStore(driver, clock=clock), _on_dictionary(clock))


def _on_dictionary(clock: SettableClock) -> Callable[[], Driver]:
    data = Dictionary()
    return lambda: DictionaryDriver(data, clock=clock)


def redis_stores(namespaces: Namespaces, lent: ExitStack) -> Callable[[SettableClock], Store]:
    """Return a new namespace for each example."""

    def open_other(clock: SettableClock) -> Store:
        lent.close()
        url = lent.enter_context(namespaces.lend())
        return without_gaps(lambda driver: KeyValueStore(driver, clock=clock), lambda: RedisDriver(url, clock=clock))

    return open_other
