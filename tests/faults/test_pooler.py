"""Behind a pooler a worker keeps nothing in a session."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlsplit

import pytest

from holdfast import Holdfast
from holdfast.testing.patience import GUARD_SECONDS
from tests.faults.app import Post, letters, workflows
from tests.postgres import PostgresProxy
from tests.proxy import FaultProxy, Tap, TapVerdict


class Ear:
    """Records every statement that is executed through a proxy."""

    def __init__(self, proxy: PostgresProxy) -> None:
        self.statements: list[str] = []
        proxy.cut_around_commit(self._note, before=True)

    def _note(self, statement: str) -> bool:
        self.statements.append(statement)
        return False  # nothing is cut


class Witness(Tap):
    """Reads the requests of a client, and records the names under which it prepares statements."""

    def __init__(self, names: list[bytes]) -> None:
        self._names = names
        self._bytes = b""
        self._has_begun = False

    def from_client(self, data: bytes) -> TapVerdict:
        self._bytes += data
        while len(self._bytes) >= (start := 1 if self._has_begun else 0) + 4:
            length = start + int.from_bytes(self._bytes[start : start + 4])
            if len(self._bytes) < length:
                break
            message, self._bytes = self._bytes[:length], self._bytes[length:]
            if self._has_begun and message[:1] == b"P":
                self._names.append(message[5 : message.index(b"\0", 5)])
            self._has_begun = True
        return TapVerdict(data)


@pytest.mark.parametrize(("options", "is_prepared"), [("", True), ("&prepare=off&hints=off", False)])
async def test_behind_a_pooler_nothing_is_prepared(postgres_url: str, options: str, *, is_prepared: bool) -> None:
    names: list[bytes] = []
    host, port = urlsplit(postgres_url).hostname or "", urlsplit(postgres_url).port or 0
    with FaultProxy(host, port, tap=lambda: Witness(names)) as proxy:
        hf = Holdfast(f"{postgres_url.replace(f':{port}/', f':{proxy.port}/')}{options}")
        hf.include(workflows)
        async with hf, hf.worker():
            for _ in range(20):
                run = await hf.start(letters, 1)
                await run.send("word", "again")
                await run.result(timeout=GUARD_SECONDS)

    assert names
    assert any(names) == is_prepared


async def test_behind_a_pooler_nothing_is_kept_in_a_session(proxy: PostgresProxy) -> None:
    ear = Ear(proxy)
    hf = Holdfast(f"{proxy.url}&prepare=off&hints=off")
    hf.include(workflows)
    async with hf:
        post = Post(hf)
        async with hf.worker(), post.sending():
            await asyncio.sleep(1)
        await post.check()

    kept = re.compile(r"listen|notify|prepare|pg_notify|pg_advisory_lock|set (?!local)|temp table", re.IGNORECASE)
    assert not [text for text in ear.statements if len(text) < 1000 and kept.match(text)]
