"""Claims of the Redis driver, beyond the order of runs: rules of types, repetitions, and their cost."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core import audit
from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import MARK_MICROS, Part
from holdfast.stores.kv.names import run_of
from holdfast.stores.redis import RedisDriver
from holdfast.stores.redis.scripts import OWN_RUNS
from holdfast.testing.contract import START, SettableClock
from tests.redis.cleaning import connect, namespace_of
from tests.redis.driver_runs import (
    a_held_run,
    a_run,
    lanes_and_types,
    place,
    read_indexes,
    read_lines,
    read_run,
    read_version,
    set_rules,
)
from tests.redis.server import RedisServer

LEASE = 30 * SECOND


def _request(types: tuple[str, ...] = ("order",), **fields: Any) -> ClaimRequest:
    known: dict[str, Any] = {"id": "claim", "worker": "me", "limit": 10, "lease": LEASE, "python": "3.11"}
    return ClaimRequest(types=types, **{**known, **fields})


async def _claimed_ids(driver: RedisDriver, request: ClaimRequest) -> list[str]:
    return [run.id for run in (await driver.claim(request)).runs]


async def test_a_claim_returns_the_whole_run(driver: RedisDriver) -> None:
    await place(driver, [a_run("a", arrivals=2)])
    written = await driver.commit(
        [Part(puts={names.history("a"): {"step": b"{}"}, names.inbox("a"): {"1": b"one", "2": b"two"}})]
    )

    found = await driver.claim(_request())

    (one,) = found.runs
    assert (one.history.version, one.history.fields) == (written.version, {"step": b"{}"})
    assert one.inbox == {"1": b"one", "2": b"two"}
    assert one.head.version > written.version
    assert (run_of(one.head.fields), one.head.version) == await read_run(driver, "a")
    assert await read_version(driver, names.leases("order")) == one.head.version


async def test_a_claim_of_a_flow_leaves_its_entries_for_people_on_the_server(driver: RedisDriver) -> None:
    await place(driver, [a_run("a")])
    history = {"~flow": b"newest", "~events": b"{}", "@turn/1": b"older", "@2/call#1": b"{}"}
    written = await driver.commit([Part(puts={names.history("a"): history})])

    (one,) = (await driver.claim(_request())).runs

    assert (one.history.version, one.history.fields) == (written.version, {"~flow": b"newest", "~events": b"{}"})


async def test_no_two_claims_get_the_same_run(driver: RedisDriver, other: RedisDriver) -> None:
    await place(driver, [a_run(f"r{number}") for number in range(9)])

    first = await _claimed_ids(driver, _request(limit=5))
    second = await _claimed_ids(other, _request(id="other", worker="you"))

    assert sorted(first + second) == [f"r{number}" for number in range(9)]


# Rules of types


async def test_disabled_types_are_not_claimed(driver: RedisDriver) -> None:
    await place(driver, [a_run("a"), a_run("b", type="mail")])
    await set_rules(driver, {"order": b"off"})

    found = await driver.claim(_request(("order", "mail")))
    alone = await driver.claim(_request())

    assert [run.id for run in found.runs] == ["b"]
    assert (alone.runs, alone.next_ready_at) == ([], None)


async def test_a_due_run_of_a_limited_type_is_left_to_the_shared_operations(driver: RedisDriver) -> None:
    await place(driver, [a_run("a"), a_run("b", type="mail"), a_run("c", type="later", ready_at=START + 1)])
    await set_rules(driver, {"mail": b"limited", "later": b"limited"})

    found = await driver.claim(_request(("order", "mail", "later")))

    assert (found.limited, found.runs) == (("mail",), [])
    assert not (await read_run(driver, "a"))[0].is_held


async def test_limited_types_without_due_runs_do_not_keep_a_claim_from_others(driver: RedisDriver) -> None:
    await place(driver, [a_run("a"), a_run("c", type="later", ready_at=START + 5)])
    await set_rules(driver, {"later": b"limited"})

    found = await driver.claim(_request(("order", "later")))

    assert ([run.id for run in found.runs], found.limited) == (["a"], ())
    assert found.next_ready_at == START + 5


@pytest.mark.parametrize("may_suspect", [True, False])
async def test_a_suspect_of_a_limited_type_counts_only_if_it_may_be_claimed(
    driver: RedisDriver, may_suspect: bool
) -> None:
    await place(driver, [a_run("a", token=3, crashes=2)])
    await set_rules(driver, {"order": b"limited"})

    found = await driver.claim(_request(may_suspect=may_suspect))

    assert found.limited == (("order",) if may_suspect else ())


async def test_a_type_whose_leases_are_marked_is_skipped_until_the_mark_ends(
    driver: RedisDriver, redis_url: str
) -> None:
    await place(driver, [a_run("a"), a_run("b", type="mail")])
    prefix = f"{{{namespace_of(redis_url)}}}:"
    with connect(redis_url) as client:  # not by the driver, whose marks would end while a slow test runs
        client.set(f"{prefix}x", "")
        client.set(f"{prefix}x:g:order", "somebody")

        found = await driver.claim(_request(("order", "mail")))
        client.unlink(f"{prefix}x:g:order")
        again = await driver.claim(_request(("order", "mail"), id="2"))

    assert [run.id for run in found.runs] == ["b"]
    assert found.next_ready_at == START + MARK_MICROS
    assert [run.id for run in again.runs] == ["a"]


# Repetitions


async def test_a_repeated_claim_returns_the_runs_that_it_has_won(driver: RedisDriver, clock: SettableClock) -> None:
    await place(driver, [a_run("a"), a_run("b", type="mail"), a_run("c")])
    first = await driver.claim(_request(("order", "mail"), limit=2))
    clock.advance(1)

    again = await driver.claim(_request(("order", "mail"), limit=2, is_repeat=True))
    narrow = await driver.claim(_request(("mail",), limit=2, is_repeat=True))

    assert sorted(again.runs) == sorted(first.runs)
    assert again.next_ready_at == clock.now()
    assert [run.id for run in narrow.runs] == ["b"]


async def test_a_repeated_claim_that_has_won_nothing_is_a_claim(driver: RedisDriver) -> None:
    await place(driver, [a_run("a"), a_held_run("mine", "me", ready_at=START + LEASE)])

    assert await _claimed_ids(driver, _request(is_repeat=True)) == ["a"]


async def test_a_claim_of_nothing_only_returns_what_it_has_won(driver: RedisDriver) -> None:
    await place(driver, [a_run("a"), a_run("b")])
    await driver.claim(_request(limit=1))

    assert await _claimed_ids(driver, _request(limit=0, is_repeat=True)) == ["a"]
    assert await _claimed_ids(driver, _request(limit=0, id="other", is_repeat=True)) == []


# When the next run is ready


async def test_runs_that_the_worker_holds_do_not_count_for_the_next_ready_time(driver: RedisDriver) -> None:
    held = [a_held_run(f"m{number}", "me", ready_at=START + 10 + number) for number in range(OWN_RUNS - 1)]
    await place(driver, [*held, a_held_run("other", "you", ready_at=START + 999)])

    assert (await driver.claim(_request())).next_ready_at == START + 999


async def test_only_the_first_held_runs_are_examined_for_one_of_another_worker(driver: RedisDriver) -> None:
    held = [a_held_run(f"m{number:03}", "me", ready_at=START + 10 + number) for number in range(OWN_RUNS)]
    await place(driver, [*held, a_held_run("other", "you", ready_at=START + 9999)])

    assert (await driver.claim(_request())).next_ready_at == START + 10 + OWN_RUNS - 1


async def test_nothing_is_ready_next_if_there_are_no_runs(driver: RedisDriver) -> None:
    assert (await driver.claim(_request())).next_ready_at is None


# Stray members of lanes


async def test_members_of_lanes_that_are_no_claimable_runs_are_removed(driver: RedisDriver, redis_url: str) -> None:
    await place(driver, [a_run("gone"), a_run("ended"), a_run("asleep"), a_run("fine", ready_at=START)])
    await driver.commit(
        [
            Part(
                clears=[names.head("gone")],
                drops={names.head("ended"): [names.MOVING], names.head("asleep"): [names.READY]},
            )
        ]
    )

    assert await _claimed_ids(driver, _request()) == ["fine"]

    lanes = {entry for entry in read_indexes(redis_url).entries if entry[0].startswith("Q:")}
    assert lanes == {(names.lane("l", 100, "order"), "fine", START + LEASE)}
    assert {name for index, name, _ in lanes_and_types(read_indexes(redis_url).names) if index == "L:order"} == {
        "l:100"
    }


async def test_a_run_is_not_claimed_before_its_own_ready_time(driver: RedisDriver, clock: SettableClock) -> None:
    """A renewal may come between the load and the commit of an operation that writes the lane of a held run."""
    await place(driver, [a_held_run("a", "you", ready_at=START)])
    await driver.commit([Part(puts={names.head("a"): {names.READY: b"%d" % (START + 50)}})])

    early = await driver.claim(_request())
    clock.advance(50)
    late = await driver.claim(_request())

    assert (early.runs, early.next_ready_at) == ([], START + 50)
    assert [run.id for run in late.runs] == ["a"]


# Audit


async def test_surplus_routine_facts_are_removed_now_and_then(driver: RedisDriver) -> None:
    run = a_run("a", token=audit.TRIM_EVERY - 1, state=RunState.SUSPENDED)
    await place(driver, [run])
    lines = [b'{"run_id":"a","event":"created","at":0}']
    lines += [b'{"run_id":"a","event":"woken","at":%d}' % number for number in range(audit.KEPT + 7)]
    await driver.commit([Part(appends={names.audit("a"): lines})])

    await driver.claim(_request())

    kept = await read_lines(driver, names.audit("a"))
    assert kept[0] == lines[0]
    assert kept[1:-1] == lines[1 + 8 :]
    assert b'"event":"claimed"' in kept[-1]


# S8


async def test_the_cost_of_a_claim_does_not_depend_on_runs_that_are_not_due(redis_server: RedisServer) -> None:
    """S8: counted in commands that the script executes on the server."""

    def others(first: int, count: int) -> list[Run]:
        numbers = range(first, first + count)
        return [
            *(a_run(f"asleep{number}", ready_at=START + 10**9) for number in numbers),
            *(a_held_run(f"held{number}", "you", ready_at=START + 10**9) for number in numbers),
            *(a_run(f"other{number}", type="mail") for number in numbers),
            *(a_run(f"ended{number}", state=RunState.SUCCEEDED, ready_at=None) for number in numbers),
            *(a_run(f"suspect{number}", token=4, crashes=3, ready_at=START + 10**9) for number in numbers),
        ]

    driver = RedisDriver(redis_server.url, clock=SettableClock())
    await driver.open()
    await driver.claim(_request())  # now the server has the script
    costs: list[int] = []
    for first, count in ((0, 1), (1, 200)):
        await place(driver, others(first, count))
        await place(driver, [a_run(f"due{first}-{number}") for number in range(3)])
        redis_server.ask("CONFIG", "RESETSTAT")
        assert len((await driver.claim(_request(id=f"c{first}", limit=4))).runs) == 3
        stats = redis_server.ask("INFO", "commandstats")
        costs.append(sum(item["calls"] for item in stats.values()))
    await driver.close()

    assert costs[0] == costs[1]
