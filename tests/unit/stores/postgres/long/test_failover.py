"""A primary dies and its standby takes over: with both hosts in the URL, every process finds it and continues."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from holdfast import Context, Holdfast, StoreUnavailable
from holdfast.testing.patience import GUARD_SECONDS
from tests.duration import lasting
from tests.guard import as_user
from tests.postgres import PostgresServer
from tests.private_server import HOST, free_port

RUNS = 30
STEPS = 10


class Standby:
    """A copy of a private server that follows it until it is promoted. Commits of the primary wait for it."""

    def __init__(self, primary: PostgresServer) -> None:
        self.port = free_port()
        self._primary = primary
        self._data = primary.folder / "standby"
        # The same database by either host, whichever is writable.
        self.url = primary.url.replace(f":{primary.port}/", f":{primary.port},{HOST}:{self.port}/")

    def start(self) -> None:
        self._run("pg_basebackup", "-d", self._primary.url, "-D", self._data, "-R", "-X", "stream", "-c", "fast")
        log = self._primary.folder / "standby.log"
        self._run("pg_ctl", "-D", self._data, "-w", "-o", f"-c port={self.port}", "-l", log, "start")
        with psycopg.connect(self._primary.url, autocommit=True) as connection:
            connection.execute("alter system set synchronous_standby_names = '*'")
            connection.execute("select pg_reload_conf()")

    def promote(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "promote")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")
        shutil.rmtree(self._data)

    def _run(self, name: str, *words: str | Path) -> None:
        subprocess.run(
            [self._primary.installation.bin / name, *words],
            cwd=self._primary.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a started server keeps it open, so a pipe would never end
            timeout=GUARD_SECONDS,
            check=True,
            **as_user(self._primary._known.user),
        )


@contextmanager
def replicated() -> Iterator[tuple[PostgresServer, Standby]]:
    with PostgresServer() as primary:
        standby = Standby(primary)
        standby.start()
        try:
            yield primary, standby
        finally:
            standby.stop()


@lasting(20)
async def test_no_accepted_write_is_lost_when_a_synchronous_standby_takes_over() -> None:
    with replicated() as (primary, standby):
        async with Holdfast(standby.url) as hf:
            begun = asyncio.Event()

            @hf.step
            async def count(number: int) -> int:
                begun.set()
                await asyncio.sleep(0.05)
                return number

            @hf.workflow("adder")
            async def adder(_ctx: Context) -> int:
                return sum([await count(number) for number in range(STEPS)])

            async with hf.worker():
                accepted = [await hf.start(adder) for _ in range(RUNS)]
                await begun.wait()
                await asyncio.to_thread(primary.kill)
                await asyncio.to_thread(standby.promote)
                late = await _insist(hf)

                results = await asyncio.gather(*(run.result(timeout=GUARD_SECONDS) for run in accepted))

            assert results == [sum(range(STEPS))] * RUNS
            assert (await hf.run(late).info()).type == "later"


async def _insist(hf: Holdfast) -> str:
    """Start a run, and retry while the store is unavailable."""
    while True:
        try:
            return (await hf.start("later", id="late")).id
        except StoreUnavailable:
            await asyncio.sleep(0.2)
