"""Pruning of runs on SQLite: the retention of the type applies at once, and long histories go in batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.core.checkpoint import ContinueAsNew
from holdfast.core.clock import DAY, SECOND
from holdfast.core.commands import Recover, SendMessages
from holdfast.core.errors import RunNotFound
from holdfast.core.model import Reply
from holdfast.core.ports import Pruned
from holdfast.core.questions import Query
from holdfast.core.retention import ROWS_PER_RUN, RUN_RETENTION
from holdfast.core.states import RunState
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import (
    TYPE,
    a_child,
    a_message,
    a_step,
    an_id,
    checkpoint_for,
    ended,
    fail,
    held,
    holder_of,
    write,
)

TABLES = ("run", "intent", "tag", "entry", "audit", "inbox", "wait", "value", "receipt", "reply", "slot")


async def rows(store: SqliteStore, tables: Sequence[str] = TABLES) -> int:
    """Return the total number of rows."""
    counts = " + ".join(f"(select count(*) from {table})" for table in tables)  # noqa: S608 - of this file
    return await store._readers.run(lambda connection: int(connection.execute(f"select {counts}").get))


async def keep(store: SqliteStore, type: str, retention: int | None) -> None:
    """Set the retention of a type."""
    statement = (
        "insert into type (name, runtime, description, is_enabled, retention, seen_by) values (?, '', '', 1, ?, '')"
        " on conflict (name) do update set retention = excluded.retention"
    )
    await store._writer.run(lambda desk: desk.connection.execute(statement, (type, retention)).close())


async def a_long_run(store: SqliteStore, steps: int) -> None:
    lease = await held(store, 1, tags={"it's": "%"}, key="k", retention=SECOND)
    await store.apply(SendMessages(messages=[a_message(id="m1")]))
    entries = tuple(a_step(f"step#{number}", number) for number in range(1, steps + 1))
    replies = (Reply(message_id="m1", payload="1"),)
    await write(store, checkpoint_for(lease, seen=1, consumed=(1,), values={"done": "1"}, replies=replies))
    await write(store, checkpoint_for(lease, fail(), seen=1, entries=entries))


async def test_the_retention_of_the_type_applies_at_once(store: SqliteStore, clock: SettableClock) -> None:
    await ended(store, 1, type="short")
    await ended(store, 2, type="long")
    await ended(store, 3, type="usual")
    await keep(store, "short", SECOND)
    await keep(store, "long", 2 * RUN_RETENTION)
    clock.advance(RUN_RETENTION)

    expected = Pruned(runs={"short": 1, "usual": 1})
    assert await store.prune(10, is_dry_run=True) == expected
    assert await store.prune(10) == expected
    await keep(store, "long", None)
    assert await store.prune(10) == Pruned(runs={"long": 1})
    assert await rows(store) == 0


async def test_a_child_that_waited_for_its_parent_has_the_retention_of_its_type_by_then(
    store: SqliteStore, clock: SettableClock
) -> None:
    parent = await held(store)
    await write(store, checkpoint_for(parent, entries=(a_child(2, "child2"),)))
    await ended(store, 2, RunState.FAILED, parent_id=an_id(1), type="child")
    clock.advance(SECOND)
    await store.prune(10, retention=SECOND)
    await write(store, checkpoint_for(parent, ContinueAsNew(payload="{}")))
    await keep(store, "child", 3 * DAY)
    clock.advance(DAY)

    assert await store.prune(10, is_dry_run=True) == Pruned()
    assert await store.prune(10) == Pruned()
    clock.advance(2 * DAY)
    assert await store.prune(10) == Pruned(runs={"child": 1})


async def test_a_run_with_a_long_history_goes_in_batches_and_is_hidden_at_once(
    store: SqliteStore, clock: SettableClock
) -> None:
    await a_long_run(store, steps=5 * ROWS_PER_RUN)
    before = await rows(store)
    clock.advance(SECOND)

    told = [await store.prune(2)]
    after = await rows(store)
    assert await store.get(an_id(1)) is None
    assert await holder_of(store, "k") is None
    assert [details.run.state for details in await store.list(Query(is_deleted=True))] == [RunState.FAILED]
    with pytest.raises(RunNotFound):
        await store.apply(Recover(run_id=an_id(1), id="r", force=True))
    while told[-1].has_more:
        told.append(await store.prune(2))

    assert before - after == 2 * ROWS_PER_RUN
    assert told == [Pruned(has_more=True)] * 2 + [Pruned(runs={TYPE: 1})]
    assert await rows(store) == 0


async def test_a_long_run_does_not_delay_the_pruning_of_others(store: SqliteStore, clock: SettableClock) -> None:
    await ended(store, 2, retention=1)
    await a_long_run(store, steps=3 * ROWS_PER_RUN)
    clock.advance(SECOND)

    assert [await store.prune(2) for _ in range(3)] == [
        Pruned(runs={TYPE: 1}, has_more=True),
        Pruned(has_more=True),
        Pruned(runs={TYPE: 1}),
    ]
    assert await rows(store) == 0
