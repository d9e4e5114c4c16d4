"""The identity of a server: users who may call INFO and users who may not share a namespace and its epochs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress

import pytest
import pytest_asyncio

from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import SECOND
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import Holding
from holdfast.stores.kv.driver import Part
from holdfast.stores.kv.names import run_of
from holdfast.stores.redis import RedisDriver, epochs
from holdfast.stores.redis.scripts import TOKEN_LEAP
from holdfast.testing.contract import START, SettableClock
from holdfast.testing.patience import until
from tests.redis.driver_runs import a_held_run, a_run, place, read_lines, read_run
from tests.redis.proxy import RedisProxy
from tests.redis.server import RedisServer

LEASE = 30 * SECOND
USERS = ("open on >secret ~* &* +@all", "shy on >secret ~* &* +@all -info -config")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server with the user `open`, who may call INFO, and the user `shy`, who may not."""
    with RedisServer({"user": USERS}) as server:
        yield server


@pytest.fixture
def replica(server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer({"user": USERS}, replica_of=server) as replica:
        yield replica


class Drivers:
    """Opens drivers of one test, and closes them at its end."""

    def __init__(self, clock: SettableClock, stack: AsyncExitStack) -> None:
        self._clock = clock
        self._stack = stack

    async def open(self, url: str) -> RedisDriver:
        driver = RedisDriver(url, clock=self._clock)
        await driver.open()
        self._stack.push_async_callback(driver.close)
        return driver


@pytest_asyncio.fixture
async def drivers(clock: SettableClock) -> AsyncIterator[Drivers]:
    async with AsyncExitStack() as stack:
        yield Drivers(clock, stack)


def _as(user: str, server: RedisServer | RedisProxy) -> str:
    return server.url_of(user, "secret") if isinstance(server, RedisServer) else server.url.replace("open", user)


def _request(worker: str) -> ClaimRequest:
    return ClaimRequest(id=f"claim of {worker}", worker=worker, types=("order",), limit=1, lease=LEASE, python="3.11")


def _is_held(driver: RedisDriver, worker: str, token: int = 1, run_id: str = "a") -> bool:
    return driver.renew(worker, b"{}", [Holding(run_id=run_id, token=token)], LEASE)[1] != [None]


# An unchanged server


@pytest.mark.parametrize("users", [("open", "shy"), ("shy", "open")])
async def test_users_with_and_without_info_leave_each_other_their_leases(
    server: RedisServer, drivers: Drivers, users: tuple[str, str]
) -> None:
    first, second = [await drivers.open(_as(user, server)) for user in users]
    await place(first, [a_held_run("a", "one"), a_held_run("b", "two")])

    for user in (*users, *users):  # each new process recognizes the server, and so does each new connection
        await drivers.open(_as(user, server))

    assert _is_held(first, "one")
    assert _is_held(second, "two", run_id="b")
    assert first.epoch == second.epoch
    assert await read_lines(first, epochs.LOG) == []


async def test_a_user_who_gets_or_loses_the_right_to_call_info_keeps_the_epoch_on_the_same_server(
    server: RedisServer, drivers: Drivers
) -> None:
    shy = await drivers.open(_as("shy", server))
    epoch = shy.epoch

    async def is_back() -> bool:
        with suppress(StoreUnavailable):  # a connection that it was just making was killed too
            await shy.load([])
            return True
        return False

    for right in ("+info", "-info"):
        server.ask("ACL", "SETUSER", "shy", right)
        server.ask("CLIENT", "KILL", "USER", "shy")
        await until("the driver is connected again", is_back)
        assert shy.epoch == epoch


# A restart


@pytest.mark.parametrize("users", [("open", "shy"), ("shy", "open")])
async def test_a_restart_is_one_epoch_no_matter_who_notices_it(
    server: RedisServer, drivers: Drivers, users: tuple[str, str]
) -> None:
    old = [await drivers.open(_as(user, server)) for user in users]
    await place(old[0], [a_held_run("a", "one")])
    epoch = old[0].epoch

    server.restart()
    new = [await drivers.open(_as(user, server)) for user in users]
    for driver in old:
        await driver.load([])

    assert len({driver.epoch for driver in (*old, *new)}) == 1
    assert old[0].epoch != epoch
    assert not (await read_run(new[0], "a"))[0].is_held
    assert len(await read_lines(new[0], epochs.LOG)) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_server_that_hides_its_run_id_is_known_by_a_script(
    server: RedisServer, drivers: Drivers, is_restarted: bool
) -> None:
    first = await drivers.open(_as("shy", server))
    await place(first, [a_held_run("a", "me")])
    epoch = first.epoch

    if is_restarted:
        server.restart()
    second = await drivers.open(_as("shy", server))

    assert (second.epoch != epoch) == is_restarted
    assert (await read_run(second, "a"))[0].is_held != is_restarted
    await second.load([])
    assert (await first.load([])).now == START
    assert first.epoch == second.epoch


# A failover


@pytest.mark.parametrize("loser", ["open", "shy"])
async def test_a_client_that_lost_its_claim_notices_a_failover_that_a_user_without_info_did_not(
    server: RedisServer, replica: RedisServer, drivers: Drivers, loser: str
) -> None:
    """The epoch was begun by a user with INFO, so the promoted server knows of no witness."""
    await drivers.open(_as("open", server))
    replica.catch_up()
    with RedisProxy(_as("open", server)) as proxy:
        old = await drivers.open(_as("open", proxy))
        await place(old, [a_run("a")])
        replica.catch_up()
        replica.cut_off()
        lost = await drivers.open(_as(loser, proxy))
        (claimed,) = (await lost.claim(_request("old"))).runs
        replica.promote()
        newcomer = await drivers.open(_as("shy", replica))
        (again,) = (await newcomer.claim(_request("new"))).runs
        assert run_of(claimed.head.fields).token == run_of(again.head.fields).token == 1
        assert newcomer.epoch == lost.epoch  # it cannot tell, and has lost nothing

        proxy.redirect_to(replica.url)
        proxy.cut()

        assert not _is_held(lost, "old")
        assert not _is_held(newcomer, "new")
        assert lost.epoch == newcomer.epoch
        (third,) = (await newcomer.claim(_request("third"))).runs
        assert run_of(third.head.fields).token > TOKEN_LEAP


async def test_a_client_that_may_no_longer_call_info_trusts_no_witness_that_it_does_not_know(
    server: RedisServer, replica: RedisServer, drivers: Drivers
) -> None:
    with RedisProxy(_as("open", server)) as proxy:
        old = await drivers.open(_as("open", proxy))
        await place(old, [a_run("a")])
        replica.catch_up()
        replica.cut_off()
        await old.claim(_request("old"))
        replica.promote()
        newcomer = await drivers.open(_as("shy", replica))
        await newcomer.claim(_request("new"))
        replica.ask("ACL", "SETUSER", "open", "-info")

        proxy.redirect_to(replica.url)
        proxy.cut()

        assert not _is_held(old, "old")
        assert (await old.commit([Part(touches=["t"])])).refused == [None]


# Advice


async def test_a_user_without_info_is_advised_at_the_start_and_by_the_check(
    server: RedisServer, drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    await drivers.open(_as("open", server))
    assert "run_id" not in caplog.text

    shy = await drivers.open(_as("shy", server))

    (record,) = [each for each in caplog.records if "run_id" in each.message]
    assert record.levelno == logging.WARNING
    assert "run: ACL SETUSER shy +info" in record.message
    (found,) = [finding for finding in await shy.check() if finding.subject == "identity"]
    assert found.level == "warning"
