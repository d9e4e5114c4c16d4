"""A private Valkey or Redis server behind a proxy: it is restarted, killed and stopped, and connections are cut."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from random import Random
from types import TracebackType
from typing import Self, get_args

from holdfast import Holdfast
from holdfast.stores.redis.scripts import lua_scripts
from tests.chaos import till
from tests.chaos.places import Blow, Deposits, Place
from tests.process.crew import Hand
from tests.proxy import CutMoment
from tests.redis import RedisProxy, RedisServer

_NAMESPACE = "chaos"
_CUTS = 3
_MOST_AWAY_SECONDS = 2.0
_SCRIPTS = ("load", "commit", "claim", "renew")


class RedisPlace(Place):
    """A namespace on a private server that flushes each write to disk before it confirms it."""

    is_deaf = True
    kinds_left_out = frozenset({"cashiers"})

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._server = self._stack.enter_context(RedisServer({"appendfsync": "always"}))
        self.url = self._server.url_of(namespace=_NAMESPACE)
        self._proxy = self._stack.enter_context(RedisProxy(self.url))
        self.way = self._proxy.url
        self._scripts = lua_scripts()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.resume()
        self._stack.close()

    def prepare(self, hf: Holdfast) -> None:
        """Nothing: the keys of deposits need no preparation."""

    def deposits(self, hf: Holdfast) -> Deposits:
        return Deposits(*till.deposits(self.url))

    def blows(self) -> Mapping[str, Blow]:
        return {
            "restart": Blow(0.4, self._restart),
            "crash": Blow(0.4, self._crash),
            "stop server": Blow(0.4, self._stop_server),
            "cut": Blow(1, self._cut),
            "cut script": Blow(3, self._cut_script),
            "hang": Blow(0.4, self._hang),
        }

    async def _restart(self, chance: Random, hands: Sequence[Hand]) -> None:
        with self.outage():
            await asyncio.to_thread(self._server.restart)

    async def _crash(self, chance: Random, hands: Sequence[Hand]) -> None:
        with self.outage():
            await asyncio.to_thread(self._server.kill)
            await asyncio.sleep(chance.uniform(0, _MOST_AWAY_SECONDS))
            await asyncio.to_thread(self._server.start)

    async def _stop_server(self, chance: Random, hands: Sequence[Hand]) -> None:
        """Freeze the server's process: it keeps its connections, and answers nothing for a while."""
        with self.outage():
            await asyncio.to_thread(self._server.pause)
            await asyncio.sleep(chance.uniform(0.1, _MOST_AWAY_SECONDS))
            await asyncio.to_thread(self._server.resume)

    async def _cut(self, chance: Random, hands: Sequence[Hand]) -> None:
        await asyncio.to_thread(self._proxy.cut)

    async def _cut_script(self, chance: Random, hands: Sequence[Hand]) -> None:
        """Cut some of the next calls of a script: the client has to find out whether they took effect."""
        sha = getattr(self._scripts, chance.choice(_SCRIPTS)).sha
        self._proxy.cut_around(f"^evalsha {sha}", chance.choice(get_args(CutMoment)), count=_CUTS)

    async def _hang(self, chance: Random, hands: Sequence[Hand]) -> None:
        """Delay all traffic for a while, then deliver it."""
        with self.outage():
            await asyncio.to_thread(self._proxy.black_hole)
            await asyncio.sleep(chance.uniform(0.1, _MOST_AWAY_SECONDS))
            await asyncio.to_thread(self._proxy.heal)

    def heal(self) -> None:
        self._server.resume()
        self._server.start()
        self._proxy.heal()

    def dump(self) -> None:
        shutil.copytree(self._server.folder / "data", self.folder / "data", dirs_exist_ok=True)
        (self.folder / "server.log").write_text(self._server.log)


PLACE = RedisPlace
