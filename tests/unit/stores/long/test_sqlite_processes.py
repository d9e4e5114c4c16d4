"""Several processes on one file: they take turns, notify each other, and take over from killed ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import Lease
from holdfast.core.news import Hint
from holdfast.core.questions import CountRuns
from holdfast.stores.sqlite import SqliteStore, hints
from holdfast.testing.contract.arrange import OTHER_WORKER, an_id, an_intent, claim, start
from holdfast.testing.patience import GUARD_SECONDS, guard, guarded, until

PRELUDE = """
import asyncio, os, sys, time
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.contract.arrange import *

path = sys.argv[1]

def say(*words):
    print(*words, flush=True)

def read_line():
    return sys.stdin.readline().strip()
"""


@pytest.fixture
def clock() -> SystemClock:
    """The database file that all processes use."""
    return SystemClock()


@contextmanager
def process(script: str, path: Path, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Another process on the same file. It is killed if it does not end by itself."""
    started = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, str(path), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def read_line(from_: subprocess.Popen[str]) -> str:
    assert from_.stdout is not None
    line = from_.stdout.readline().strip()
    if not line:
        assert from_.stderr is not None
        raise AssertionError(from_.stderr.read())
    return line


def say(to: subprocess.Popen[str], word: str) -> None:
    assert to.stdin is not None
    print(word, file=to.stdin, flush=True)


HOLDER = """
async def main():
    store = SqliteStore(path)
    await store.open()
    lease = await held(store)
    await asyncio.to_thread(store.renew, a_worker(), [holding_of(lease)], 120 * LEASE)
    say("held")
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_the_runs_of_a_killed_process_are_taken_over_long_before_their_lease_ends(
    path: Path, store: SqliteStore
) -> None:
    with process(HOLDER, path) as holder:
        assert await asyncio.to_thread(read_line, holder) == "held"
        before = await claim(store, worker=OTHER_WORKER)
        holder.send_signal(signal.SIGKILL)
        await asyncio.to_thread(holder.wait)
    leases: tuple[Lease, ...] = ()

    async def is_taken_over() -> bool:
        nonlocal leases
        leases = (await claim(store, worker=OTHER_WORKER)).leases
        return bool(leases)

    await until("another worker, which asks again and again, is given the run", is_taken_over)

    assert before.leases == ()
    assert before.next_ready_at is not None
    # The next claim is within a second, although the lease is an hour.
    assert before.next_ready_at <= before.now + 1_000_000
    assert [(lease.run.id, lease.run.crashes) for lease in leases] == [(an_id(1), 1)]


HOLDER_WITH_CHILD = """
import subprocess

async def main():
    store = SqliteStore(path)
    await store.open()
    lease = await held(store)
    await asyncio.to_thread(store.renew, a_worker(), [holding_of(lease)], LEASE)
    nothing = subprocess.DEVNULL
    executed = subprocess.Popen(["sleep", "30"], stdin=nothing, stdout=nothing, stderr=nothing)
    read_end, write_end = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.write(write_end, b"!")
        os.close(1)
        os.close(2)
        time.sleep(30)
        os._exit(0)
    os.read(read_end, 1)  # it has begun, and has closed what is not its own
    say(executed.pid, forked)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_children_of_a_killed_process_do_not_keep_its_locks(path: Path, store: SqliteStore) -> None:
    with process(HOLDER_WITH_CHILD, path) as holder:
        children = [int(pid) for pid in (await asyncio.to_thread(read_line, holder)).split()]
        holder.send_signal(signal.SIGKILL)
        await asyncio.to_thread(holder.wait)
    try:
        claimed = await claim(store, worker=OTHER_WORKER)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)

    assert [lease.run.id for lease in claimed.leases] == [an_id(1)]


WRITER = """
async def main():
    store = SqliteStore(path)
    await store.open()
    first, count = int(sys.argv[2]), int(sys.argv[3])
    say("ready")
    read_line()
    for number in range(first, first + count):
        await start(store, an_intent(number))
    say("done")
    await store.close()

asyncio.run(main())
"""


async def test_processes_take_turns_and_lose_nothing(path: Path, store: SqliteStore) -> None:
    count = 150
    with process(WRITER, path, 0, count) as one, process(WRITER, path, 1_000, count) as two:
        for writer in (one, two):
            assert await asyncio.to_thread(read_line, writer) == "ready"
        for writer in (one, two):
            say(writer, "go")
        for writer in (one, two):
            assert await asyncio.to_thread(read_line, writer) == "done"

    counts = await store.stats(CountRuns())
    assert [sum(states.values()) for states in counts.values()] == [2 * count]


EMITTER = """
async def main():
    store = SqliteStore(path)
    await store.open()
    say("ready")
    number = 0
    while read_line():
        number += 1
        await start(store, an_intent(number))
    await store.close()

asyncio.run(main())
"""


async def test_a_commit_is_noticed_by_another_process_that_does_not_poll(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_SLOW_POLL_SECONDS", 3600.0)
    received: asyncio.Queue[Hint] = asyncio.Queue()
    with process(EMITTER, path) as emitter:
        assert await asyncio.to_thread(read_line, emitter) == "ready"
        stop = store.listen(received.put_nowait)
        for number in range(9):
            say(emitter, "go")
            hint = await guarded(f"commit {number} is noticed", received.get())
            assert hint.is_foreign or hint.is_elsewhere
        stop()


UNCLOSED = """
async def main():
    store = SqliteStore(path)
    await store.open()
    store.listen(say)
    await start(store, an_intent(1))
    await store.get(an_id(1))
    globals()["kept"] = store

asyncio.run(main())
"""


async def test_a_store_that_was_not_closed_ends_with_the_program_silently(path: Path, store: SqliteStore) -> None:
    with process(UNCLOSED, path) as unclosed:
        out, errors = await asyncio.to_thread(unclosed.communicate, None, GUARD_SECONDS)

    assert unclosed.returncode == 0
    assert errors == ""
    assert "Hint" in out
    assert await store.get(an_id(1)) is not None


def forked(attempt: Callable[[], object]) -> str:
    """Return the result of an attempt in a forked child: the error text, or that it worked."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads is the point here
        child = os.fork()
    if child == 0:  # the child runs no test: it answers and exits
        asyncio.events._set_running_loop(None)
        try:
            attempt()
            os.write(writing, b"it worked")
        except StoreUnavailable as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    answer = os.read(reading, 10_000).decode()
    os.close(reading)
    os.waitpid(child, 0)
    return answer


async def test_an_open_store_cannot_be_used_in_a_forked_child(store: SqliteStore) -> None:
    await start(store, an_intent(1))

    answer = await asyncio.to_thread(forked, lambda: asyncio.run(store.get(an_id(1))))

    assert "open the store after the fork" in answer
    await start(store, an_intent(2))  # the parent's store still works


async def test_an_open_database_cannot_be_opened_in_a_forked_child(store: SqliteStore, path: Path) -> None:
    answer = await asyncio.to_thread(forked, lambda: asyncio.run(SqliteStore(path).open()))

    assert "was open in the process that this one was forked from" in answer


async def test_a_store_that_was_never_opened_can_be_opened_in_a_forked_child(path: Path) -> None:
    store = SqliteStore(path)

    answer = await asyncio.to_thread(forked, lambda: asyncio.run(store.open()))

    assert answer == "it worked"
    assert SqliteStore(path).schema().current > 0


async def test_processes_forked_before_the_store_was_opened_notify_each_other_at_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_SLOW_POLL_SECONDS", 3600.0)
    store, is_forked, may_go_on = SqliteStore(path), tmp_path / "forked", tmp_path / "go-on"

    async def begin() -> None:
        await store.open()
        await start(store, an_intent(1))
        await store.close()

    def attempt() -> None:
        is_forked.touch()
        while not may_go_on.exists():
            time.sleep(0.005)
        asyncio.run(begin())

    child = asyncio.create_task(asyncio.to_thread(forked, attempt))
    async with guard("the forked child is noticed"):
        await until("the child is forked", is_forked.exists)
        await store.open()
        received: asyncio.Queue[Hint] = asyncio.Queue()
        store.listen(received.put_nowait)
        may_go_on.touch()
        assert await child == "it worked"
        assert (await received.get()).is_foreign
    await store.close()


async def test_a_closed_database_can_be_opened_in_a_forked_child(path: Path) -> None:
    closed = SqliteStore(path)
    await closed.open()
    await closed.close()

    assert await asyncio.to_thread(forked, lambda: asyncio.run(SqliteStore(path).open())) == "it worked"


async def test_another_program_may_read_while_holdfast_writes(path: Path, store: SqliteStore) -> None:
    await start(store, an_intent(1))
    shell = apsw.Connection(str(path))

    assert shell.execute("select count(*) from run").get == 1
    await start(store, an_intent(2))
    assert shell.execute("select count(*) from run").get == 2
    shell.close()
