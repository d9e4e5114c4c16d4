"""Claiming on Postgres: rows that a claim cannot see, and how it finds them later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from holdfast.core.checkpoint import Claimed
from holdfast.core.commands import SendMessages
from holdfast.core.news import Hint
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.contract import SettableClock
from holdfast.testing.contract.arrange import (
    LEASE,
    OTHER_WORKER,
    TYPE,
    a_message,
    a_step,
    an_id,
    an_intent,
    checkpoint_for,
    claim,
    start,
)
from holdfast.testing.patience import guarded, until

TURN = 4711
"""The advisory lock for which a claim waits, after it has leased the first run and before it locks the second."""

SLOW_CLAIM = f"""
create function public.wait_for_turn() returns trigger
    language plpgsql
    as $$
begin
    if new.id = '{an_id(1)}' and new.token > old.token then
        perform pg_advisory_xact_lock({TURN});
    end if;
    return new;
end
$$;

create trigger wait_for_turn before update on holdfast.runs
    for each row execute function public.wait_for_turn();
"""

IS_WAITING = """
select exists (
    select
    from pg_locks
    where locktype = 'advisory' and objid = %s and not granted
        and database = (select oid from pg_database where datname = current_database())
)
"""

IN_ONE_STATEMENT = {
    "worn text[];": "worn text[]; histories json;",
    "into claimed, worn\n": ", json_object_agg(l.id, history_v1(l.id)) into claimed, worn, histories\n",
    "leases_of_runs_v1(claimed, is_repeat)": """(
        select json_agg(json_build_object(
            'run', row_to_json(r), 'entries', coalesce(histories -> r.id, '[]'), 'arrivals', '[]'::json
        ) order by c.place)
        from unnest(claimed) with ordinality as c (id, place)
        join runs_read as r on r.id = c.id
    )""",
}
"""Edits that make the claim read histories in the statement that leases, with the snapshot of that statement."""


@pytest_asyncio.fixture
async def store(postgres_store_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_store_url, clock=SettableClock())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def outsider(postgres_store_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_store_url, autocommit=True) as connection:
        yield connection


async def test_a_hint_is_repeated_for_a_due_run_that_was_locked(store: PostgresStore) -> None:
    # A claim skips locked rows, so one made meanwhile may have found nothing.
    await start(store, an_intent())
    await store.apply(SendMessages(messages=[a_message()]))
    await asyncio.sleep(0)
    hints: list[Hint] = []
    store.listen(hints.append)

    await store.apply(SendMessages(messages=[a_message()]))  # the same message again: nothing changes
    await asyncio.sleep(0)

    assert {TYPE} in [hint.ready for hint in hints]


async def locked_by_somebody(outsider: psycopg.Connection[Any], *numbers: int) -> None:
    outsider.execute("begin")
    ids = [an_id(number) for number in numbers]
    outsider.execute("select from holdfast.runs where id = any(%s) for no key update", (ids,))


@pytest.mark.parametrize("locked", [5, 60])
async def test_a_claim_reads_on_where_other_transactions_have_locked_the_rows_it_read(
    store: PostgresStore, outsider: psycopg.Connection[Any], locked: int
) -> None:
    """However many rows it skips, the claim gets the first of the others."""
    await start(store, *(an_intent(number) for number in range(100)))
    await locked_by_somebody(outsider, *range(locked))

    claimed = await claim(store, limit=4)

    assert [lease.run.id for lease in claimed.leases] == [an_id(number) for number in range(locked, locked + 4)]


async def claim_slowly(url: str, outsider: psycopg.Connection[Any]) -> Claimed:
    """Claim two runs while their old holder writes to the second one, which the claim has not locked yet.

    Such a checkpoint adds to the history of the run and leaves its row alone. Nothing in the row tells the claim, which
    started before, that there is something new.
    """
    clock = SettableClock()
    holder, claimer = PostgresStore(url, clock=clock), PostgresStore(url, clock=clock)
    async with _opened(holder), _opened(claimer):
        await start(holder, an_intent(1), an_intent(2))
        leases = {lease.run.id: lease for lease in (await claim(holder, limit=2)).leases}
        clock.advance(LEASE)
        outsider.execute(SLOW_CLAIM)
        outsider.execute("select pg_advisory_lock(%s)", (TURN,))

        claiming = asyncio.create_task(claim(claimer, worker=OTHER_WORKER, limit=2))
        await until("the claim waits for its turn", lambda: _is_waiting(outsider))
        writing = holder.checkpoint([checkpoint_for(leases[an_id(2)], entries=(a_step(),))])
        (verdict,) = (await guarded("the holder has written", writing)).verdicts
        assert not verdict.is_lost
        assert not claiming.done()
        outsider.execute("select pg_advisory_unlock(%s)", (TURN,))
        return await guarded("the claim is answered", claiming)


async def test_a_claim_that_is_slow_to_lock_a_run_gets_a_history_as_new_as_its_token(
    postgres_store_url: str, outsider: psycopg.Connection[Any]
) -> None:
    claimed = await claim_slowly(postgres_store_url, outsider)

    assert [(lease.run.id, lease.run.token, lease.entries) for lease in claimed.leases] == [
        (an_id(1), 2, ()),
        (an_id(2), 2, (a_step(),)),
    ]


async def test_a_claim_that_read_histories_in_the_statement_that_leases_would_miss_entries(
    postgres_store_url: str, outsider: psycopg.Connection[Any]
) -> None:
    """Counter-check of the test above: a claim in one statement gets a new token and an old history."""
    ((text,),) = outsider.execute(
        "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'holdfast'::regnamespace "
        "and proname = 'claim_v1'"
    ).fetchall()
    for right, wrong in IN_ONE_STATEMENT.items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    outsider.execute(text)

    claimed = await claim_slowly(postgres_store_url, outsider)

    assert [(lease.run.token, lease.entries) for lease in claimed.leases] == [(2, ()), (2, ())]


@asynccontextmanager
async def _opened(store: PostgresStore) -> AsyncIterator[None]:
    await store.open()
    try:
        yield
    finally:
        await store.close()


def _is_waiting(outsider: psycopg.Connection[Any]) -> bool:
    return outsider.execute(IS_WAITING, (TURN,)).fetchone() == (True,)
