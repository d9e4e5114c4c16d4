"""Key-value stores for machines that compare a store with the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from holdfast.core.checkpoint import Checkpoint, Verdicts
from holdfast.core.ports import Store
from holdfast.stores.kv import KeyValueStore, names
from holdfast.stores.kv.dictionary import Dictionary, DictionaryDriver
from holdfast.stores.kv.driver import Answers, Committed, Driver, Part, Read, Reserve
from holdfast.stores.redis import RedisDriver
from holdfast.testing.contract import SettableClock
from tests.key_value.wrapped_driver import WrappedDriver
from tests.redis import Namespaces


class GaplessDriver(WrappedDriver):
    """Numbers events and dead letters as the model does. A real driver skips numbers that an operation did not use.

    `counters` are the last numbers in use. Drivers of one store share them.
    """

    def __init__(self, inner: Driver, counters: dict[str, int]) -> None:
        super().__init__(inner)
        self._counters = counters
        self._is_restoring = False
        """True if the last number was asked for. Only an import does that, before it skips numbers."""

    async def load(self, reads: Sequence[Read]) -> Answers:
        found = await super().load([read for read in reads if not isinstance(read, Reserve)])
        others = iter(found.answers)
        answers = [self._numbers(read) if isinstance(read, Reserve) else next(others) for read in reads]
        return Answers(found.now, answers)

    def _numbers(self, read: Reserve) -> range:
        last = self._counters.get(read.counter, 0)
        if read.count and self._is_restoring:
            self._counters[read.counter] = last + read.count  # skips the numbers of the other store for good
        self._is_restoring = read.count == 0
        return range(last + 1, last + 1 + read.count)

    async def commit(self, parts: Sequence[Part], hint: bytes = b"") -> Committed:
        self._is_restoring = False
        for part in parts:
            for name, fields in part.puts.items():
                if name.startswith("e:"):
                    self._use(names.EVENT_NUMBERS, [int(field) for field in fields if field.isdigit()])
                elif name.startswith("d:"):
                    self._use(names.LETTER_NUMBERS, [int(name[2:])])
        return await super().commit(parts, hint)

    def _use(self, counter: str, numbers: Sequence[int]) -> None:
        self._counters[counter] = max(self._counters.get(counter, 0), *numbers, 0)


class ForgetfulStore(KeyValueStore):
    """Remembers nothing of held runs, like a process that has just reconnected."""

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> Verdicts:
        self._held.clear()
        return await super().checkpoint(checkpoints)


def dictionary_store(clock: SettableClock) -> Store:
    return KeyValueStore(_on_dictionary(clock), clock=clock)


def forgetful_store(clock: SettableClock) -> Store:
    return ForgetfulStore(_on_dictionary(clock), clock=clock)


def _on_dictionary(clock: SettableClock) -> Callable[[], Driver]:
    data = Dictionary()
    counters: dict[str, int] = {}
    return lambda: GaplessDriver(DictionaryDriver(data, clock=clock), counters)


def redis_stores(namespaces: Namespaces, lent: ExitStack) -> Callable[[SettableClock], Store]:
    """Return a new namespace for each example."""

    def open_other(clock: SettableClock) -> Store:
        lent.close()
        url = lent.enter_context(namespaces.lend())
        counters: dict[str, int] = {}
        return KeyValueStore(lambda: GaplessDriver(RedisDriver(url, clock=clock), counters), clock=clock)

    return open_other
