"""Epochs of the Redis driver: after a restart or a failover, no token and no version is given twice."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import Holding, Run
from holdfast.core.states import RunState
from holdfast.core.verbs import StopRequest
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import Part, Reserve
from holdfast.stores.kv.histories import fact_line, facts_of
from holdfast.stores.kv.names import run_of
from holdfast.stores.redis import RedisDriver, epochs
from holdfast.stores.redis.scripts import NUMBER_LEAP, TOKEN_LEAP, VERSION_LEAP
from holdfast.testing.contract import START, SettableClock
from holdfast.testing.patience import until
from tests.redis.driver_runs import (
    a_held_run,
    a_run,
    entries_of_all,
    place,
    read_indexes,
    read_lines,
    read_run,
    read_version,
)
from tests.redis.proxy import RedisProxy
from tests.redis.server import RedisServer

LEASE = 30 * SECOND


def _request(worker: str = "me", **fields: Any) -> ClaimRequest:
    known: dict[str, Any] = {"id": f"claim of {worker}", "limit": 10, "lease": LEASE, "python": "3.11"}
    return ClaimRequest(worker=worker, types=("order",), **{**known, **fields})


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return redis_server.url_of(namespace="jobs")


@pytest_asyncio.fixture
async def kept(url: str, clock: SettableClock) -> AsyncIterator[RedisDriver]:
    """An open driver on a server that the test may restart."""
    driver = RedisDriver(url, clock=clock)
    await driver.open()
    yield driver
    await driver.close()


async def _changed(driver: RedisDriver, epoch: int) -> None:
    """Wait until a driver has noticed that the epoch is another one."""

    async def is_changed() -> bool:
        return driver.epoch != epoch

    await until("the driver notices the new epoch", is_changed)


async def _line(driver: RedisDriver, place: int = -1) -> epochs.EpochLine:
    return epochs.decode_line((await read_lines(driver, epochs.LOG))[place])


# A restart


async def test_a_restart_makes_all_leases_void_and_charges_no_crash(
    kept: RedisDriver, redis_server: RedisServer, url: str, clock: SettableClock
) -> None:
    runs = [
        a_held_run("plain", ready_at=START + LEASE),
        a_held_run("rolling", state=RunState.ROLLING_BACK, rollback=RunState.FAILED, priority=3),
        a_held_run("suspect", crashes=2, token=7),
        a_held_run("crashed", crashes=1, token=4),
        a_held_run("pausing", "w2", stop=StopRequest.PAUSE, arrivals=3),
        a_run("free", token=4),
        a_run("new"),
    ]
    await place(kept, runs)
    epoch, versions = kept.epoch, {run.id: (await read_run(kept, run.id))[1] for run in runs}
    clock.advance(9)

    redis_server.restart()
    await _changed(kept, epoch)

    base = TOKEN_LEAP
    expected: list[Run] = []
    for run in runs:
        if run.is_held:
            state = RunState.PENDING if run.rollback is None else RunState.ROLLING_BACK
            freed = replace(run, state=state, worker=None, claim_id=None, token=base + 1)
            expected.append(replace(freed, ready_at=clock.now(), updated_at=clock.now()))
        else:
            expected.append(run)
    assert [(await read_run(kept, run.id))[0] for run in runs] == expected
    assert read_indexes(url).entries == entries_of_all(expected).entries
    for run in runs:
        version = (await read_run(kept, run.id))[1]
        assert (version > VERSION_LEAP) == run.is_held
        assert run.is_held or version == versions[run.id]
    assert await read_version(kept, names.leases("order")) > VERSION_LEAP


async def test_a_released_run_has_a_fact_that_says_why(kept: RedisDriver, redis_server: RedisServer) -> None:
    await place(kept, [a_held_run('a"', 'w"1')])
    epoch = kept.epoch

    redis_server.restart()
    await _changed(kept, epoch)

    (line,) = await read_lines(kept, names.audit('a"'))
    (fact,) = facts_of('a"', [line])
    assert line == fact_line(fact)
    assert (fact.run_id, fact.event, fact.at) == ('a"', "released", START)
    assert fact.data == {"worker": 'w"1', "reason": "the server was restarted or replaced, or the store was migrated"}


async def test_what_was_remembered_before_a_restart_is_refused(kept: RedisDriver, redis_server: RedisServer) -> None:
    await place(kept, [a_held_run("a", "me")])
    epoch, version = kept.epoch, (await read_run(kept, "a"))[1]

    redis_server.restart()
    committed = await kept.commit([Part(checks={names.head("a"): version}), Part(touches=["t"])], epoch=epoch)

    assert (committed.now, committed.refused) == (START, [names.head("a"), names.META])
    assert await read_version(kept, "t") == 0
    assert kept.renew("me", b"{}", [Holding(run_id="a", token=1)], LEASE)[1] == [None]
    assert (await kept.commit([Part(checks={names.head("a"): version})])).refused == [names.head("a")]


async def test_numbers_and_tokens_leap_ahead(kept: RedisDriver, redis_server: RedisServer) -> None:
    await place(kept, [a_run("a", token=3), a_run("b")])
    await kept.load([Reserve(names.EVENT_NUMBERS, 5)])
    version = (await kept.commit([Part(touches=["t"])])).version
    epoch = kept.epoch

    redis_server.restart()
    await _changed(kept, epoch)

    found = await kept.claim(_request())
    assert [run_of(run.head.fields).token for run in found.runs] == [TOKEN_LEAP + 2, TOKEN_LEAP + 1]
    assert (await kept.load([Reserve(names.EVENT_NUMBERS, 1)])).answers == [range(NUMBER_LEAP + 6, NUMBER_LEAP + 7)]
    assert (await kept.load([Reserve(names.LETTER_NUMBERS, 1)])).answers == [range(1, 2)]
    assert found.runs[0].head.version > version + VERSION_LEAP


async def test_a_second_restart_is_a_second_epoch(
    kept: RedisDriver, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    first = kept.epoch
    await place(kept, [a_held_run("a")])
    redis_server.restart()
    await _changed(kept, first)
    second = kept.epoch
    await kept.commit([Part(touches=["t"])])  # not lost, although its version is above that of the first restart
    redis_server.restart()
    await _changed(kept, second)

    assert first < second < kept.epoch
    lines = [await _line(kept, place) for place in (0, 1)]
    assert [(line.from_, line.to, line.released, line.lost) for line in lines] == [
        (first, second, 1, 0),
        (second, kept.epoch, 0, 0),
    ]
    warnings = [record.message for record in caplog.records if "restarted or replaced" in record.message]
    assert "1 lease was released" in warnings[0]
    findings = [finding.text for finding in await kept.check() if finding.subject == "epochs"]
    assert len(findings) == 2
    assert "1 lease was released" in findings[0]


async def test_all_clients_of_a_server_share_an_epoch(kept: RedisDriver, redis_server: RedisServer, url: str) -> None:
    other = RedisDriver(url)
    await other.open()
    assert other.epoch == kept.epoch
    epoch = kept.epoch

    redis_server.restart()
    await _changed(kept, epoch)
    await _changed(other, epoch)

    assert other.epoch == kept.epoch
    assert len(await read_lines(kept, epochs.LOG)) == 1
    await other.close()


async def test_a_new_connection_to_the_same_server_begins_no_epoch(
    clock: SettableClock, redis_server: RedisServer, url: str
) -> None:
    with RedisProxy(url) as proxy:
        driver = RedisDriver(proxy.url, clock=clock)
        await driver.open()
        await place(driver, [a_held_run("a", "me")])
        epoch = driver.epoch

        proxy.cut()

        assert driver.renew("me", b"{}", [Holding(run_id="a", token=1)], LEASE)[1] != [None]
        assert driver.epoch == epoch
        await driver.close()


async def test_leases_become_void_in_small_bites_and_nobody_works_before_all_are(
    redis_server: RedisServer, url: str, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "RELEASED_AT_ONCE", 2)
    first = RedisDriver(url, clock=clock)
    await first.open()
    await place(first, [a_held_run(f"r{number}", f"w{number % 3}") for number in range(9)])
    await first.close()
    redis_server.restart()
    with RedisProxy(url) as proxy:
        broken = RedisDriver(proxy.url, clock=clock)
        rule = proxy.cut_around("evalsha", "before", skip=2, count=2)  # after two bites
        with pytest.raises(Exception, match="cannot be reached"):
            await broken.open()
        rule.end()
        assert len([entry for entry in read_indexes(url).entries if entry[0].startswith("H:")]) == 5

        await broken.open()

        assert [entry for entry in read_indexes(url).entries if entry[0].startswith("H:")] == []
        assert (await _line(broken)).released == 9
        assert len(await read_lines(broken, epochs.LOG)) == 1
        assert len((await broken.claim(_request())).runs) == 9
        await broken.close()


async def test_a_renewal_is_enough_to_notice_a_restart(kept: RedisDriver, redis_server: RedisServer) -> None:
    await place(kept, [a_held_run("a", "me")])
    epoch = kept.epoch
    assert kept.renew("me", b"{}", [Holding(run_id="a", token=1)], LEASE)[1] != [None]

    redis_server.restart()

    # It blocks the loop, so no other connection of this driver can be first.
    assert kept.renew("me", b"{}", [Holding(run_id="a", token=1)], LEASE)[1] == [None]
    assert kept.epoch > epoch


async def test_a_driver_that_missed_an_epoch_is_refused_once(driver: RedisDriver, other: RedisDriver) -> None:
    """Such as on a connection to a server that was a replica for a while, and is the primary again."""
    await place(driver, [a_held_run("a", "me", ready_at=START + LEASE), a_run("b")])
    await other.commit([Part(puts={names.META: {"epoch": b"%d" % (driver.epoch + 5)}})])

    assert (await driver.commit([Part(puts={"p": {}})])).refused == [names.META]
    await driver.load([])
    assert (await driver.commit([Part(puts={"p": {}})])).refused == [None]
    assert driver.epoch == other.epoch + 5
    assert len((await other.claim(_request())).runs) == 1
    assert other.epoch == driver.epoch


@pytest.mark.parametrize("is_known", [True, False], ids=["noticed by an old client", "noticed by a new client"])
async def test_an_emptied_namespace_has_a_new_epoch(
    kept: RedisDriver,
    redis_server: RedisServer,
    url: str,
    clock: SettableClock,
    caplog: pytest.LogCaptureFixture,
    *,
    is_known: bool,
) -> None:
    epoch = kept.epoch
    await place(kept, [a_run("a")])

    redis_server.ask("FLUSHALL")
    if not is_known:
        new = RedisDriver(url, clock=clock)
        await new.open()
        await new.close()

    assert (await kept.commit([Part(touches=["t"])])).refused == [names.META]
    await kept.load([])
    assert (await kept.commit([Part(touches=["t"])])).refused == [None]
    assert kept.epoch != epoch
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "all its runs are gone" in error
    findings = [finding for finding in await kept.check() if finding.subject == "epochs"]
    assert [(finding.level, "was emptied" in finding.text) for finding in findings] == [("warning", True)]


# A failover


@pytest.fixture
def replica(redis_server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer(replica_of=redis_server) as replica:
        yield replica


async def test_a_token_is_not_given_twice_after_a_failover_that_lost_writes(
    redis_server: RedisServer, replica: RedisServer, url: str, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisProxy(url) as proxy:
        driver = RedisDriver(proxy.url, clock=clock)
        await driver.open()
        await place(driver, [a_run("a"), a_run("b")])
        replica.catch_up()
        replica.cut_off()
        (lost,) = (await driver.claim(_request("old", limit=1))).runs
        version = (await driver.commit([Part(puts={names.history("a"): {"s1": b"{}"}})])).version
        epoch = driver.epoch

        replica.promote()
        proxy.redirect_to(replica.url)
        proxy.cut()
        stale = await driver.commit([Part(checks={names.history("a"): version}, puts={names.history("a"): {}})])
        found = await driver.claim(_request("new"))

        assert run_of(lost.head.fields).token == 1
        assert [(run.id, run_of(run.head.fields).token) for run in found.runs] == [
            ("a", TOKEN_LEAP + 1),
            ("b", TOKEN_LEAP + 1),
        ]
        assert stale.refused == [names.history("a")]
        assert driver.renew("old", b"{}", [Holding(run_id="a", token=1)], LEASE)[1] == [None]
        assert driver.epoch != epoch
        line = await _line(driver)
        assert line.lost == 2
        assert [finding.level for finding in await driver.check() if finding.subject == "epochs"] == ["warning"]
        errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert any("at least 2 confirmed writes were lost" in text for text in errors)
        await driver.close()


async def test_what_was_lost_is_noted_for_clients_that_come_later(
    redis_server: RedisServer, replica: RedisServer, url: str, clock: SettableClock
) -> None:
    """The first client after the failover may not know of any loss."""
    with RedisProxy(url) as proxy:
        knowing = RedisDriver(proxy.url, clock=clock)
        await knowing.open()
        replica.catch_up()
        replica.cut_off()
        for _ in range(4):
            await knowing.commit([Part(touches=["t"])])
        replica.promote()
        ignorant = RedisDriver(replica.url_of(namespace="jobs"), clock=clock)
        await ignorant.open()
        assert (await _line(ignorant)).lost == 0

        proxy.redirect_to(replica.url)
        proxy.cut()
        await knowing.load([])

        assert (await _line(ignorant)).lost == 4
        assert knowing.epoch == ignorant.epoch
        await ignorant.close()
        await knowing.close()


async def test_an_old_primary_that_does_not_know_of_its_successor_is_refused(
    redis_server: RedisServer, replica: RedisServer, url: str, clock: SettableClock
) -> None:
    with RedisProxy(url) as proxy:
        driver = RedisDriver(proxy.url, clock=clock)
        await driver.open()
        replica.catch_up()
        replica.promote()
        proxy.redirect_to(replica.url)
        proxy.cut()
        await driver.load([])
        epoch = driver.epoch

        proxy.redirect_to(redis_server.url)
        proxy.cut()
        with pytest.raises(StoreUnavailable, match="is no longer the primary: another server has taken over"):
            await driver.commit([Part(touches=["t"])])

        assert driver.epoch == epoch
        await driver.close()


async def test_a_connection_that_outlives_two_failovers_is_refused(
    redis_server: RedisServer, replica: RedisServer, url: str, clock: SettableClock
) -> None:
    driver = RedisDriver(url, clock=clock)
    await driver.open()
    await place(driver, [a_held_run("a", "me")])
    version = (await read_run(driver, "a"))[1]
    assert driver.renew("me", b"{}", [Holding(run_id="a", token=1)], LEASE)[1] != [None]
    replica.catch_up()
    replica.promote()
    other = RedisDriver(replica.url_of(namespace="jobs"), clock=clock)
    await other.open()
    redis_server.rejoin(replica)
    redis_server.promote()

    # Nobody has connected to the old server since it is the primary again.
    assert driver.renew("me", b"{}", [Holding(run_id="a", token=1)], LEASE)[1] == [None]
    committed = await driver.commit([Part(checks={names.head("a"): version}, puts={names.head("a"): {}})])

    assert committed.refused == [names.head("a")]
    assert driver.epoch > other.epoch
    await other.close()
    await driver.close()
