"""The watcher: a commit of another process is noticed at once, with or without inotify."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from holdfast.core.news import Hint
from holdfast.stores.sqlite import SqliteStore, hints
from holdfast.testing.contract.arrange import TYPE, an_intent, claim, start
from holdfast.testing.patience import guarded, until

ELSEWHERE = Hint(is_elsewhere=True)
STARTED = Hint(ready=frozenset({TYPE}), is_foreign=True)


class Ear:
    """Collects hints, and lets a test wait for the next one."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Hint] = asyncio.Queue()

    def __call__(self, hint: Hint) -> None:
        self.heard.put_nowait(hint)

    async def next(self) -> Hint:
        return await guarded("a hint comes", self.heard.get())


async def listening(store: SqliteStore, ear: Ear) -> Callable[[], None]:
    """Subscribe `ear`, and wait until the poll that this causes is over: it would also report the next commit."""
    stop = store.listen(ear)
    await until("the first poll has begun", lambda: store._hints._polled_at > 0)
    await claim(store)  # the writer answers only after the poll
    return stop


@pytest.fixture
def slow_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling, so that only file changes are noticed."""
    monkeypatch.setattr(hints, "_SLOW_POLL_SECONDS", 3600.0)


@pytest.fixture
def no_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such thing here")

    monkeypatch.setattr(hints, "_Watch", fail)


@pytest.mark.usefixtures("slow_poll")
async def test_a_file_change_is_noticed(store: SqliteStore, other: SqliteStore) -> None:
    ear = Ear()
    stop = await listening(store, ear)

    await start(other, an_intent(1))

    assert await ear.next() == STARTED
    stop()


@pytest.mark.usefixtures("slow_poll")
async def test_every_file_change_is_noticed_or_followed_by_one_that_is(store: SqliteStore, other: SqliteStore) -> None:
    ear = Ear()
    stop = await listening(store, ear)

    for number in range(20):
        await start(other, an_intent(number))
        assert await ear.next() == STARTED
    stop()


@pytest.mark.usefixtures("slow_poll")
async def test_own_commits_are_announced_once_and_precisely(store: SqliteStore) -> None:
    ear = Ear()
    stop = await listening(store, ear)

    for number in range(20):
        await start(store, an_intent(number))
        assert (await ear.next()).ready
    await asyncio.sleep(0.05)  # time for a wrong hint to arrive

    assert ear.heard.empty()
    stop()


@pytest.mark.usefixtures("slow_poll")
async def test_many_commits_cause_few_hints(store: SqliteStore, other: SqliteStore) -> None:
    ear = Ear()
    stop = await listening(store, ear)
    begun = time.monotonic()

    for number in range(300):
        await start(other, an_intent(number))
    await ear.next()

    seconds = time.monotonic() - begun
    assert 1 + ear.heard.qsize() <= seconds * hints._TOUCHES_A_SECOND + hints._TOUCHES_AT_ONCE + 2
    stop()


async def test_a_lost_file_change_is_compensated_by_polling(
    store: SqliteStore, other: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_SLOW_POLL_SECONDS", 0.1)
    monkeypatch.setattr(other._hints, "post", lambda _: None)
    ear = Ear()
    stop = store.listen(ear)

    await start(other, an_intent(1))

    assert await ear.next() == ELSEWHERE
    stop()


@pytest.mark.usefixtures("no_inotify")
async def test_without_inotify_the_version_is_polled(store: SqliteStore, other: SqliteStore) -> None:
    ear = Ear()
    stop = store.listen(ear)

    for number in range(3):
        await start(other, an_intent(number))
        assert await ear.next() == ELSEWHERE
    stop()


async def test_a_commit_without_changes_causes_no_hint(store: SqliteStore, other: SqliteStore) -> None:
    ear = Ear()
    stop = store.listen(ear)

    await claim(other)
    await asyncio.sleep(0.05)

    assert ear.heard.empty()
    stop()


@pytest.mark.usefixtures("slow_poll")
async def test_a_listener_from_before_the_opening_gets_hints_too(tmp_path: Path, other: SqliteStore) -> None:
    early = SqliteStore(tmp_path / "runs.db")
    ear = Ear()
    stop = early.listen(ear)
    await early.open()

    await start(other, an_intent(1))

    assert await ear.next() in (STARTED, ELSEWHERE)  # whichever is first: the file change, or a poll after the opening
    stop()
    await early.close()


@pytest.mark.usefixtures("slow_poll")
async def test_a_listener_that_has_left_gets_nothing_and_leaves_nothing_behind(
    store: SqliteStore, other: SqliteStore
) -> None:
    ear = Ear()
    stop = store.listen(ear)
    stop()
    stop()

    await start(other, an_intent(1))
    await start(store, an_intent(2))
    await asyncio.sleep(0.02)

    assert ear.heard.empty()
    assert store._hints._watches == {}


@pytest.mark.usefixtures("slow_poll")
async def test_an_idle_store_with_a_listener_polls_rarely(store: SqliteStore) -> None:
    stop = store.listen(Ear())
    await until("the first poll has been taken", lambda: (store._hints.seconds_to_poll() or 0.0) > 1800)
    stop()

    assert store._hints.seconds_to_poll() is None


@pytest.mark.usefixtures("slow_poll")
def test_the_watcher_works_on_uvloop(tmp_path: Path) -> None:
    async def main() -> Hint:
        store, other = SqliteStore(tmp_path / "runs.db"), SqliteStore(tmp_path / "runs.db")
        await store.open()
        await other.open()
        ear = Ear()
        stop = await listening(store, ear)
        await start(other, an_intent(1))
        hint = await ear.next()
        stop()
        await store.close()
        await other.close()
        return hint

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == STARTED
