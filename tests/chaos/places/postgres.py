"""A private Postgres server behind a proxy: the server is restarted and crashes, and connections are cut."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from random import Random
from types import TracebackType
from typing import Self

import psycopg

from tests.chaos.places import Blow, Place
from tests.faults.statements import STATEMENTS
from tests.postgres import PostgresProxy, PostgresServer, wanted_version
from tests.process.crew import Hand

_DATABASE = "chaos"
_CUTS = 3
_MOST_AWAY_SECONDS = 2.0


class PostgresPlace(Place):
    """A database on a private server."""

    is_deaf = True

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._server = self._stack.enter_context(PostgresServer(wanted_version()))
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(f"create database {_DATABASE}")
        self.url = self._server.url_of(_DATABASE)
        self._proxy = self._stack.enter_context(PostgresProxy(self.url))
        self.way = self._proxy.url
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def blows(self) -> Mapping[str, Blow]:
        return {
            "restart": Blow(0.4, self._restart),
            "crash": Blow(0.4, self._crash),
            "cut": Blow(1, self._cut),
            "cut commit": Blow(3, self._cut_commit),
            "hang": Blow(0.4, self._hang),
        }

    async def _restart(self, chance: Random, hands: Sequence[Hand]) -> None:
        with self.outage():
            await asyncio.to_thread(self._server.restart, chance.choice(["fast", "immediate"]))

    async def _crash(self, chance: Random, hands: Sequence[Hand]) -> None:
        with self.outage():
            await asyncio.to_thread(self._server.kill)
            await asyncio.sleep(chance.uniform(0, _MOST_AWAY_SECONDS))
            await asyncio.to_thread(self._server.start)

    async def _cut(self, chance: Random, hands: Sequence[Hand]) -> None:
        await asyncio.to_thread(self._proxy.cut)

    async def _cut_commit(self, chance: Random, hands: Sequence[Hand]) -> None:
        """Cut some of the next commits: the client has to find out whether they took effect."""
        statement = chance.choice(sorted(STATEMENTS))
        self._proxy.cut_around_commit(STATEMENTS[statement], before=chance.random() < 0.5, count=_CUTS)

    async def _hang(self, chance: Random, hands: Sequence[Hand]) -> None:
        """Delay all traffic for a while, then deliver it."""
        with self.outage():
            await asyncio.to_thread(self._proxy.black_hole)
            await asyncio.sleep(chance.uniform(0.1, _MOST_AWAY_SECONDS))
            await asyncio.to_thread(self._proxy.heal)

    def heal(self) -> None:
        if self._server.pid is None:
            self._server.start()
        self._proxy.heal()

    def dump(self) -> None:
        program = self._server.installation.bin / "pg_dump"
        subprocess.run([program, "--file", self.folder / "database.sql", self.url], check=True)


PLACE = PostgresPlace
