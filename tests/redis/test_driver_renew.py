"""Renewals of the Redis driver: leases grow longer, and nothing else changes."""

from __future__ import annotations

import threading

from holdfast.core.clock import SECOND
from holdfast.core.model import Holding
from holdfast.core.verbs import StopRequest
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import AllFields, Part, Renewed
from holdfast.stores.redis import RedisDriver, renewals
from holdfast.testing.contract import START, SettableClock
from tests.redis.driver_runs import a_held_run, a_run, entries_of_all, place, read_indexes, read_run

LEASE = 30 * SECOND
RECORD = b'{"id":"me"}'


def _holding(run_id: str, token: int = 1, seen: int = 0) -> Holding:
    return Holding(run_id=run_id, token=token, seen=seen)


async def test_a_renewal_extends_leases_and_changes_no_version(
    driver: RedisDriver, redis_url: str, clock: SettableClock
) -> None:
    await place(driver, [a_held_run("a", "me"), a_held_run("z", "me", crashes=1), a_held_run("p", "me", priority=-3)])
    before = {run_id: await read_run(driver, run_id) for run_id in "azp"}
    clock.advance(5)

    now, verdicts = driver.renew("me", RECORD, [_holding(run_id) for run_id in "azp"], LEASE)

    assert (now, verdicts) == (START + 5, [Renewed(0)] * 3)
    after = {run_id: await read_run(driver, run_id) for run_id in "azp"}
    assert {run.ready_at for run, _ in after.values()} == {START + 5 + LEASE}
    assert [version for _, version in after.values()] == [version for _, version in before.values()]
    assert read_indexes(redis_url).entries == entries_of_all(run for run, _ in after.values()).entries


async def test_a_lease_that_is_not_held_any_more_is_lost(driver: RedisDriver) -> None:
    await place(driver, [a_held_run("taken", "you", token=2), a_run("free", token=1), a_run("asleep", ready_at=None)])
    runs = [await read_run(driver, run_id) for run_id in ("taken", "free", "asleep")]

    _, verdicts = driver.renew("me", RECORD, [_holding(name) for name in ("taken", "free", "asleep", "none")], LEASE)

    assert verdicts == [None] * 4
    assert [await read_run(driver, run_id) for run_id in ("taken", "free", "asleep")] == runs


async def test_a_renewal_reports_a_pause_and_arrivals_that_the_holder_does_not_know(driver: RedisDriver) -> None:
    await place(driver, [a_held_run("a", "me", arrivals=12, stop=StopRequest.PAUSE), a_held_run("b", "me", arrivals=2)])
    await driver.commit([Part(puts={names.inbox("a"): {"9": b"nine", "10": b"ten", "12": b"twelve", "3": b"three"}})])

    _, verdicts = driver.renew("me", RECORD, [_holding("a", seen=8), _holding("b", seen=2)], LEASE)

    assert verdicts == [Renewed(12, stop=StopRequest.PAUSE, newer=(b"nine", b"ten", b"twelve")), Renewed(2)]


async def test_without_a_worker_nothing_is_written(driver: RedisDriver, clock: SettableClock) -> None:
    await place(driver, [a_held_run("a", "me")])
    clock.advance(5)

    _, verdicts = driver.renew("", b"", [_holding("a"), _holding("b")], LEASE)

    assert verdicts == [Renewed(0), None]
    assert (await read_run(driver, "a"))[0].ready_at == START
    assert (await driver.load([AllFields(names.WORKERS)])).answers == [(0, {})]


async def test_the_record_of_a_worker_keeps_its_start(driver: RedisDriver, clock: SettableClock) -> None:
    driver.renew("me", RECORD, [], LEASE)
    clock.advance(7)
    driver.renew("me", b'{"id":"me","pid":2}', [], LEASE)

    (workers,) = (await driver.load([AllFields(names.WORKERS)])).answers
    assert workers == (0, {"me": b'%d %d {"id":"me","pid":2}' % (START, START + 7)})


async def test_more_leases_than_one_call_takes_are_renewed(driver: RedisDriver, clock: SettableClock) -> None:
    count = renewals.RUNS_AT_ONCE + 1
    await place(driver, [a_held_run("first", "me"), a_held_run("last", "me")])
    holdings = [_holding("first"), *(_holding(f"none{number}") for number in range(count - 2)), _holding("last")]

    _, verdicts = driver.renew("me", RECORD, holdings, LEASE)

    assert [place for place, verdict in enumerate(verdicts) if verdict is not None] == [0, count - 1]
    assert (await read_run(driver, "last"))[0].ready_at == START + LEASE


async def test_several_threads_may_renew_at_once(driver: RedisDriver) -> None:
    await place(driver, [a_held_run(f"r{number}", "me") for number in range(8)])
    renewed: list[object] = []

    def renew(number: int) -> None:
        renewed.extend(driver.renew("me", RECORD, [_holding(f"r{number}")], LEASE)[1])

    threads = [threading.Thread(target=renew, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert renewed == [Renewed(0)] * 8
