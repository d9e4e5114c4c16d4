"""Units of work on Postgres: rows locked too late to be seen, and rows that changed while a lock was awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar

import psycopg
import pytest

from holdfast.core.commands import Cancel, SendMessages, Sent
from holdfast.core.model import MessageToRun
from holdfast.stores.operations import arrivals, controls
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.scripts import Calls, Script, pipelined, run_script
from holdfast.stores.postgres.unit_of_work import PART, decide
from holdfast.stores.workspace.reads import for_messages, reads_for
from holdfast.testing.contract.arrange import OTHER_WORKER, a_message, an_id, an_intent, claim_one, start, the_run
from holdfast.testing.patience import until

T = TypeVar("T")

IS_WAITING = """
select exists (
    select
    from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'
)
"""


@pytest.fixture
def sender(postgres_store_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_store_url, autocommit=True) as connection:
        yield connection


async def until_somebody_waits(outsider: psycopg.Connection[Any]) -> None:
    def is_waited() -> bool:
        outsider.execute("select pg_stat_clear_snapshot()")
        return outsider.execute(IS_WAITING).fetchone() == (True,)

    await until("a session waits for a lock", is_waited)


def hold_row(outsider: psycopg.Connection[Any], number: int) -> None:
    outsider.execute("select from holdfast.runs where id = %s for no key update", (an_id(number),))


async def test_a_run_created_while_another_is_waited_for_is_not_written_without_its_lock(
    store: PostgresStore, outsider: psycopg.Connection[Any], sender: psycopg.Connection[Any]
) -> None:
    """Otherwise its row would be reset, although a worker has claimed it since."""
    await start(store, an_intent(1, type="other.v1"))
    messages = [a_message(1, id="m1"), a_message(2, id="m2")]
    script = decide(
        Calls("holdfast"),
        for_messages(messages),
        lambda unit, now: arrivals.send(unit, messages, now),
        None,
    )
    hold_row(outsider, 1)
    begin, load = pipelined(next(script)).statements
    sender.execute(*begin)
    loading = asyncio.create_task(asyncio.to_thread(lambda: sender.execute(*load).fetchone()))
    await until_somebody_waits(outsider)
    await start(store, an_intent(2))
    outsider.rollback()
    row = await loading
    assert row is not None
    lease = await claim_one(store, worker=OTHER_WORKER)

    told, _ = run_script(sender, _with_answer(script, row[0]))

    assert told == [Sent(run_id=an_id(1)), Sent(run_id=an_id(2), refused="unknown")]
    run = await the_run(store, 2)
    assert (run.token, run.worker) == (lease.run.token, OTHER_WORKER)


async def test_a_message_finds_the_run_that_has_its_key_at_delivery(
    store: PostgresStore, outsider: psycopg.Connection[Any]
) -> None:
    await start(store, an_intent(1, key="k"))
    await store.apply(Cancel(run_id=an_id(1), id="c"))
    hold_row(outsider, 1)
    sending = asyncio.create_task(
        store.apply(SendMessages(messages=[MessageToRun(id="m", name="go", payload="1", key="k")]))
    )
    await until_somebody_waits(outsider)
    outsider.execute("update holdfast.runs set key = null where id = %s", (an_id(1),))
    outsider.execute("insert into holdfast.runs (id, type, key) values (%s, 'new.v1', 'k')", (an_id(2),))
    outsider.commit()

    assert await sending == [Sent(run_id=an_id(2))]


async def test_the_end_of_a_run_reads_only_its_own_children(
    store: PostgresStore, sender: psycopg.Connection[Any]
) -> None:
    sender.execute(
        "insert into holdfast.runs (id, type, parent_id, on_close) "
        "select 'child-' || n, 'child.v1', 'somebody', 'cancel' from generate_series(1, 20000) as n"
    )
    sender.execute("analyze holdfast.runs")
    await start(store, an_intent(1), an_intent(2, parent_id=an_id(1), parent_location="child", on_close="cancel"))
    request = Cancel(run_id=an_id(1), id="c")
    before = _rows_read(sender)

    run_script(
        sender,
        decide(
            Calls("holdfast"),
            reads_for(request),
            lambda unit, now: controls.control(unit, request, now),
            None,
        ),
    )

    assert _rows_read(sender) - before < 1_000
    assert (await the_run(store, 2)).state.is_end


@pytest.mark.parametrize("is_said", [True, False])
def test_a_failing_part_leaves_the_surrounding_transaction_alive(
    sender: psycopg.Connection[Any],
    is_said: bool,
) -> None:
    """Also a part that fails before its first statement: then there is nothing to roll back."""

    def broken() -> Script[None]:
        if is_said:
            yield b"create temporary table things (name text)", ()
        raise ZeroDivisionError

    with sender.transaction():
        sender.execute("create temporary table before (name text)")
        with pytest.raises(ZeroDivisionError):
            run_script(sender, PART.around(broken()))
        found = sender.execute("select to_regclass('before') is not null, to_regclass('things') is null").fetchone()

    assert found == (True, True)


def _with_answer(script: Script[T], answer: str) -> Script[T]:
    """A script that continues after this answer."""
    statement = script.send(answer)
    try:
        while True:
            statement = script.send((yield statement))
    except StopIteration as end:
        told: T = end.value
        return told


def _rows_read(connection: psycopg.Connection[Any]) -> int:
    """Return the number of run rows that this session has read. The session flushes its counts on request."""
    connection.execute("select pg_stat_force_next_flush()")
    row = connection.execute(
        "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables "
        "where schemaname = 'holdfast' and relname = 'runs'"
    ).fetchone()
    assert row is not None
    return int(row[0])
