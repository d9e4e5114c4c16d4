"""Accepted means on disk: sessions of the store wait for it, whatever is set for the server, database or role."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.core.errors import StoreUnavailable
from holdfast.stores.postgres import checkup, connections
from holdfast.stores.postgres.address import PostgresAddress
from holdfast.stores.postgres.connections import Connection, SessionLimits, connect
from tests.postgres import PostgresServer

EXPLICIT = "options=-c%20synchronous_commit%3D"
HASTY = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
"""Settings of a server that loses the commits of the last seconds if it is killed."""


def commit_level(connection: psycopg.Connection[Any]) -> str:
    ((level,),) = connection.execute("show synchronous_commit").fetchall()
    return str(level)


@contextmanager
def default_off(observer: Connection, whose: str) -> Iterator[None]:
    """Let sessions of the test's database not wait for the disk by default."""
    whose = whose.format(user=observer.info.user, database=observer.info.dbname)
    observer.execute(f"alter {whose} set synchronous_commit = off".encode())
    yield
    observer.execute(f"alter {whose} reset synchronous_commit".encode())


@pytest.mark.parametrize(
    "limits", [connections.USUAL, connections.OWN, connections.UNLIMITED], ids=["usual", "own", "unlimited"]
)
@pytest.mark.parametrize("whose", ["database {database}", "role {user} in database {database}"])
def test_sessions_wait_for_the_disk_whatever_the_default_is(
    postgres_url: str, observer: Connection, whose: str, limits: SessionLimits
) -> None:
    with default_off(observer, whose):
        with psycopg.connect(postgres_url) as other:
            assert commit_level(other) == "off"
        with connect(PostgresAddress.of(postgres_url), limits) as connection:
            assert commit_level(connection) == "on"


@pytest.mark.parametrize("level", ["off", "local", "remote_apply"])
def test_a_setting_of_the_url_about_waiting_for_the_disk_wins(postgres_url: str, level: str) -> None:
    with connect(PostgresAddress.of(f"{postgres_url}&{EXPLICIT}{level}")) as connection:
        assert commit_level(connection) == level


def test_where_synchronous_commit_cannot_be_set_a_default_of_off_is_refused(
    postgres_url: str, observer: Connection
) -> None:
    address = PostgresAddress.of(f"{postgres_url}&prepare=off")
    connect(address).close()

    told = "does not wait for the disk .* run: alter role .* set synchronous_commit = on"
    with default_off(observer, "database {database}"):
        with pytest.raises(StoreUnavailable, match=told):
            connect(address)
        connect(PostgresAddress.of(f"{postgres_url}&prepare=off&{EXPLICIT}off")).close()


@pytest.fixture
def hasty_server() -> Iterator[PostgresServer]:
    """A server whose sessions do not wait for the disk by default."""
    with PostgresServer(settings=HASTY) as server:
        yield server


async def started(hf: Holdfast) -> str:
    return (await hf.start("later.v1", {}, key="a")).id


async def inserted(hf: Holdfast) -> str:
    with hf.connection() as connection:
        connection.execute("insert into mine values (1)")
    return ""


async def finished(hf: Holdfast) -> str:
    async with hf.worker():
        run = await hf.start("work.v1", {})
        await run.result()
    return run.id


ACTS = {
    started: "select count(*) from holdfast.runs where id = %s",
    inserted: "select count(*) from mine where %s = ''",
    finished: "select count(*) from holdfast.runs where id = %s and state = 'succeeded'",
}


@pytest.mark.long
async def test_accepted_writes_survive_the_crash_of_a_server_that_does_not_wait_for_the_disk(
    hasty_server: PostgresServer,
) -> None:
    for act, question in ACTS.items():
        hf = Holdfast(hasty_server.url)

        @hf.task("work.v1")
        def work() -> None: ...

        async with hf:
            with hf.connection() as connection:
                connection.execute("create table if not exists mine (id int)")
            accepted = await act(hf)
            await asyncio.to_thread(hasty_server.kill)
            await asyncio.to_thread(hasty_server.start)
        with psycopg.connect(hasty_server.url) as connection:
            assert connection.execute(question, (accepted,)).fetchone() == (1,), act.__name__


@pytest.mark.long
def test_the_doctor_finds_a_server_that_does_not_survive_a_crash() -> None:
    with (
        PostgresServer(settings={"fsync": "off", "full_page_writes": "off"}) as server,
        connect(PostgresAddress.of(f"{server.url}&{EXPLICIT}off")) as connection,
    ):
        found = checkup.findings(connection, "holdfast")

    assert [(one.level, one.text.partition(":")[0]) for one in found if one.subject == "durability"] == [
        ("problem", "fsync is off"),
        ("problem", "full_page_writes is off"),
        ("warning", "synchronous_commit is off"),
    ]
