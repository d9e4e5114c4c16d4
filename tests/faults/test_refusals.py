"""Unusable databases: opening one raises an error that names the problem and the remedy."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from holdfast import Holdfast, HoldfastError, SchemaOutOfDate, StoreUnavailable
from holdfast.cli.exits import ExitCode
from holdfast.stores.postgres import connections
from holdfast.testing.patience import guard
from tests.faults.app import letters, workflows

NOBODY = "no server listens there; is it running, and are host and port right?"

SHOP = """
from holdfast import Holdfast

hf = Holdfast()


@hf.task
def ping() -> None: ...
"""


async def refusal(url: str) -> HoldfastError:
    """Return the error of a start there."""
    hf = Holdfast(url)
    hf.include(workflows)
    try:
        with pytest.raises(HoldfastError) as caught:
            await hf.start(letters, 0)
    finally:
        await hf.close()
    assert "secret" not in str(caught.value)
    return caught.value


def changed(url: str, *, account: str | None = None, database: str | None = None, port: int | None = None) -> str:
    """Return a URL with one part replaced."""
    parts = urlsplit(url)
    old_account, _, place = parts.netloc.rpartition("@")
    if port is not None:
        place = f"{place.rpartition(':')[0]}:{port}"
    path = parts.path if database is None else f"/{database}"
    return urlunsplit(parts._replace(netloc=f"{account or old_account}@{place}", path=path))


async def test_a_server_that_is_too_old_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "OLDEST_VERSION", 99)

    error = await refusal(postgres_url)

    assert isinstance(error, StoreUnavailable)
    assert "holdfast needs 99 or newer: upgrade the server" in str(error)


async def test_a_schema_of_a_newer_version_is_refused(postgres_url: str) -> None:
    async with Holdfast(postgres_url):
        pass
    with psycopg.connect(postgres_url) as connection:
        connection.execute("update holdfast.meta set value = '999' where name in ('schema', 'compatible_from')")

    error = await refusal(postgres_url)

    assert isinstance(error, SchemaOutOfDate)
    assert "has schema number 999, made by a newer version of holdfast" in str(error)
    assert "use the newer version here" in str(error)


async def test_a_user_without_permissions_is_refused(postgres_url: str) -> None:
    name = "guest_" + urlsplit(postgres_url).path[-8:]
    guest = changed(postgres_url, account=f"{name}:secret")
    with psycopg.connect(postgres_url, autocommit=True) as administrator:
        administrator.execute(f"create role {name} login password 'secret'".encode())
        try:
            stranger = await refusal(guest)
            async with Holdfast(postgres_url):
                pass
            visitor = await refusal(guest)
            administrator.execute(f"grant usage on schema holdfast to {name}".encode())
            onlooker = await refusal(guest)
            for statement in granted(str(onlooker)):
                administrator.execute(statement.encode())
            async with Holdfast(guest) as hf:
                hf.include(workflows)
                await hf.start(letters, 0)
                async with hf.worker() as worker:
                    await worker.run_until_idle()
        finally:
            administrator.execute(f"drop owned by {name}; drop role {name}".encode())

    assert "grant create on database" in str(stranger)
    assert f"grant usage on schema holdfast to {name}" in str(visitor).replace('"', "")
    assert all(isinstance(error, StoreUnavailable) for error in (stranger, visitor, onlooker))


def granted(advice: str) -> list[str]:
    """Return the statements that an error suggests to an administrator."""
    return [part for part in advice.partition("run: ")[2].split("; ") if part.startswith("grant")]


async def test_a_wrong_password_is_refused(postgres_url: str) -> None:
    user = urlsplit(postgres_url).username

    error = await refusal(changed(postgres_url, account=f"{user}:secret"))

    assert isinstance(error, StoreUnavailable)
    assert "refuses the password; check user and password in the URL" in str(error)


async def test_an_unknown_database_is_refused(postgres_url: str) -> None:
    error = await refusal(changed(postgres_url, database="nowhere"))

    assert isinstance(error, StoreUnavailable)
    assert "has no such database; create it (`createdb`), or correct the URL" in str(error)


async def test_an_unreachable_server_is_refused(postgres_url: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        error = await refusal(changed(postgres_url, port=nobody.getsockname()[1]))

    assert isinstance(error, StoreUnavailable)
    assert NOBODY in str(error)


async def test_a_worker_that_cannot_start_ends_with_the_reason(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = changed(postgres_url, account="somebody:secret", port=nobody.getsockname()[1])
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", "worker", "shop:hf"),
            cwd=tmp_path,
            env=os.environ | {"HOLDFAST_URL": url},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with guard("the worker ends"):
            said, _ = await worker.communicate()

    assert worker.returncode == ExitCode.UNREACHABLE
    assert NOBODY in said.decode()
    assert "secret" not in said.decode()
    assert "Traceback" not in said.decode()
