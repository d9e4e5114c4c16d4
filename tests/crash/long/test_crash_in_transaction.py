"""A fault at every call that a worker makes, in runs with transactions: their writes happen exactly once."""

from __future__ import annotations

import asyncio
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Registry, Retry, step_info
from holdfast.testing.faults import When
from holdfast.testing.harness import Harness
from tests.crash.rehearsal import Outcome, Script, compare, play
from tests.postgres import Databases
from tests.programs.ledger import EffectLedger
from tests.stage import DATABASE_KINDS, lent

either = pytest.mark.parametrize("when", ["before", "after"])
kinds = pytest.mark.parametrize("kind", DATABASE_KINDS)

STUBBORN = Retry(max_attempts=9, initial=0.1, jitter=0)


@pytest.fixture(autouse=True)
def impatient_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers retry at once, because they wait in real time."""
    monkeypatch.setattr("holdfast.worker.committer.pauses", lambda: repeat(0.0))
    monkeypatch.setattr("holdfast.core.outage.pauses", lambda: repeat(0.0))


def transfers(app: Registry, ledger: EffectLedger) -> None:
    """Two counters: each transaction moves one from the first to the second, and returns the total moved."""

    def move(connection: Any) -> int:
        ledger.note()
        connection.execute("update counter set count = count - 1 where name = 'here'")
        connection.execute("update counter set count = count + 1 where name = 'there'")
        if step_info().location == "flaky" and step_info().attempt < 2:
            raise OSError("busy")
        return int(connection.execute("select count from counter where name = 'there'").fetchone()[0])

    @app.workflow("main")
    async def main(ctx: Context) -> list[Any]:
        found: list[Any] = [await ctx.tx("move", move)]
        found.append(await ctx.step("a", ledger.note, 1))
        found.append(await ctx.tx("move", move))
        found.append(await ctx.step("cheap", ledger.note, 2, ephemeral=True))
        found.append(await ctx.tx("flaky", move, retry=STUBBORN))
        await ctx.sleep(3600)
        both = await asyncio.gather(ctx.tx("left", move), ctx.tx("right", move), ctx.step("b", ledger.note, 3))
        found.append(sorted(both))
        return found


async def run_main(h: Harness) -> None:
    with h.connection() as connection:
        connection.execute("create table counter (name text, count integer)")
        connection.execute("insert into counter values ('here', 0), ('there', 0)")
    await (await h.start("main", id="main")).result()
    with h.connection(readonly=True) as connection:
        counted = connection.execute("select count from counter order by name").fetchall()
    assert counted == [(-5,), (5,)]


FLAKY = ("main", "flaky")
TRANSFERS = Script("transfers", transfers, run_main)


async def rehearse(folder: Path, kind: str, databases: Databases, **faults: Any) -> Outcome:
    folder.mkdir()
    with lent(kind, databases) as url:
        return await play(TRANSFERS, kind, folder, url=url, **faults)


def without_order(outcome: Outcome) -> Outcome:
    """Ignore the order of the last two moves, which are concurrent."""
    state, result, error, history, *rest = outcome.runs["main"]
    kept = [one if one[0] not in ("left", "right") else (*one[:3], None, None) for one in history]
    outcome.runs["main"] = (state, result, error, kept, *rest)
    return outcome


@kinds
@either
async def test_a_crash_at_any_call_moves_nothing_twice(
    when: When, kind: str, tmp_path: Path, postgres_databases: Databases
) -> None:
    """Promise 7. A fault after a call loses its answer; the call takes effect."""
    undisturbed = without_order(await rehearse(tmp_path / "0", kind, postgres_databases))
    assert undisturbed.calls.count("transact") == 6
    for number in range(2, len(undisturbed.calls) + 1):
        crashes = ((number, when),)
        disturbed = await rehearse(tmp_path / str(number), kind, postgres_databases, crashes=crashes)
        compare(undisturbed, without_order(disturbed))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@either
async def test_a_call_that_fails_once_moves_nothing_twice(
    when: When, kind: str, tmp_path: Path, postgres_databases: Databases
) -> None:
    """S6: the lost answer is read back, and nothing is started again."""
    undisturbed = without_order(await rehearse(tmp_path / "0", kind, postgres_databases))
    flaky = undisturbed.begun.pop(FLAKY)
    for number in range(2, len(undisturbed.calls) + 1):
        failures = ((number, when),)
        disturbed = without_order(await rehearse(tmp_path / str(number), kind, postgres_databases, failures=failures))
        # A failed attempt whose failure was lost is made again: its writes were rolled back.
        assert disturbed.begun.pop(FLAKY) in (flaky, flaky + 1)
        compare(undisturbed, disturbed)
        assert disturbed.begun == undisturbed.begun
