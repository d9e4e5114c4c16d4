"""Waiting for ends: from memory if the run ended here, by a query if it ended elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar, cast

import pytest
import pytest_asyncio

from holdfast.core.checkpoint import Finish
from holdfast.core.commands import Cancellation
from holdfast.core.errors import ErrorRecord, StoreUnavailable
from holdfast.core.model import Intent
from holdfast.core.news import Hint
from holdfast.core.questions import Awaited, EndsOf
from holdfast.core.states import RunState
from holdfast.engine.answers import Results
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import transitions
from holdfast.testing.patience import guarded

DONE = Finish(state=RunState.SUCCEEDED, result="1")


A = TypeVar("A")


class CountingStore(MemoryStore):
    """A memory store that counts queries for ends, and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.asked_for: list[set[str]] = []
        self.trouble: Exception | None = None
        self._was_asked = asyncio.Event()

    async def until_asked(self, count: int) -> None:
        """Wait until this number of queries was made."""
        while self.asked < count:
            self._was_asked.clear()
            await self._was_asked.wait()

    async def changes(self, question: Awaited[A]) -> A:
        self.asked += 1
        self._was_asked.set()
        self.asked_for.append(set(cast("EndsOf", question).run_ids))
        if self.trouble is not None:
            raise self.trouble
        return await super().changes(question)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest_asyncio.fixture
async def ends(store: CountingStore) -> AsyncIterator[Results]:
    ends = Results(store)
    ends._poll_seconds = 3600.0  # so that it queries only after a hint
    yield ends
    await ends.close()


async def test_a_noted_end_is_known_without_a_query(ends: Results, store: CountingStore) -> None:
    waiting = asyncio.create_task(ends.wait("a", is_fresh=True))
    await asyncio.sleep(0)
    ends.note("a", DONE)
    assert (await waiting).result == "1"
    assert (await ends.wait("a")).state is RunState.SUCCEEDED
    assert store.asked == 0


async def test_every_waiting_caller_gets_the_end(ends: Results) -> None:
    waiting = [asyncio.create_task(ends.wait("a")) for _ in range(3)]
    await asyncio.sleep(0)
    ends.note("a", Finish(state=RunState.FAILED, error=ErrorRecord(type="ValueError", message="no")))
    assert {str((await one).error) for one in waiting} == {"ValueError: no"}


async def test_an_end_elsewhere_is_found_by_a_query(ends: Results, store: CountingStore) -> None:
    await store.create([Intent(id="a", type="t", payload="{}")])
    waiting = asyncio.create_task(ends.wait("a"))
    await store.until_asked(1)
    transitions.cancel(store._unit, "a", Cancellation(reason="enough", request="c"), 0)
    store._send_hint()  # the hint that another process would have sent
    end = await guarded("the end is found", waiting)
    assert (end.state, end.error and end.error.message) == (RunState.CANCELLED, "enough")


async def test_a_caller_that_stops_waiting_leaves_nothing_behind(ends: Results) -> None:
    waiting = asyncio.create_task(ends.wait("a"))
    await asyncio.sleep(0)
    assert ends.is_awaited
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not ends.is_awaited


async def test_a_hint_causes_a_query_for_the_runs_it_names(ends: Results, store: CountingStore) -> None:
    waiting = [asyncio.create_task(ends.wait(name)) for name in "abc"]
    await store.until_asked(1)
    ends._on_hint(Hint(ended=frozenset("bx"), is_foreign=True))
    await store.until_asked(2)
    ends._on_hint(Hint(ended=frozenset("y"), is_foreign=True))
    ends._on_hint(Hint(is_elsewhere=True))
    await store.until_asked(3)
    assert store.asked_for == [set("abc"), {"b"}, set("abc")]
    for one in waiting:
        one.cancel()


async def test_a_run_whose_end_is_noted_before_the_query_is_not_queried(ends: Results, store: CountingStore) -> None:
    first = asyncio.create_task(ends.wait("a", is_fresh=True))
    second = asyncio.create_task(ends.wait("b", is_fresh=True))
    await asyncio.sleep(0)
    ends.note("a", DONE)
    await first
    await store.until_asked(1)
    assert store.asked_for == [{"b"}]
    second.cancel()


async def test_without_hints_all_waiting_runs_are_polled(ends: Results, store: CountingStore) -> None:
    ends._poll_seconds = 0.001
    waiting = [asyncio.create_task(ends.wait(name)) for name in "ab"]
    await store.until_asked(4)
    assert all(asked == set("ab") for asked in store.asked_for)
    for one in waiting:
        one.cancel()


async def test_a_hint_during_a_query_causes_another_query(ends: Results, store: CountingStore) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    ask = store.changes

    async def slow(question: Awaited[A]) -> A:
        found = await ask(question)  # read first; then the run changes
        begun.set()
        await go_on.wait()
        return found

    store.changes = slow  # type: ignore[method-assign]
    await store.create([Intent(id="a", type="t", payload="{}")])
    waiting = asyncio.create_task(ends.wait("a"))
    await begun.wait()
    transitions.cancel(store._unit, "a", Cancellation(reason="enough", request="c"), 0)
    ends._on_hint(Hint(ended=frozenset("a"), is_foreign=True))
    go_on.set()
    assert (await guarded("the end is found", waiting)).state is RunState.CANCELLED


async def test_an_unreachable_store_is_queried_again(
    ends: Results, store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    ends._poll_seconds = 0.001
    await store.create([Intent(id="a", type="t", payload="{}")])
    store.trouble = StoreUnavailable("gone")
    waiting = asyncio.create_task(ends.wait("a"))
    await store.until_asked(3)
    store.trouble = None
    transitions.cancel(store._unit, "a", Cancellation(reason="enough", request="c"), 0)
    assert (await guarded("the end is found", waiting)).state is RunState.CANCELLED
    assert [record.getMessage().partition(" after ")[0] for record in caplog.records] == [
        "cannot look for results; trying again: gone",
        "looking for results works again",
    ]


async def test_any_other_error_of_the_store_reaches_the_waiting_callers(ends: Results, store: CountingStore) -> None:
    store.trouble = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        await ends.wait("a")


async def test_callers_that_wait_for_ends_are_cancelled_by_close(store: CountingStore) -> None:
    ends = Results(store)
    waiting = asyncio.create_task(ends.wait("a"))
    await asyncio.sleep(0)
    await ends.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
