"""The measured program: performs one operation N times in a warmed process, then 2N times, and counts both.

python -P workload.py step --url URL --sizes 40 80 --meter counts

It stands alone and calls only the public API, so it also runs on the source of another commit. The one exception is the
store's `claim`, which no public function performs alone. All sources of variation are fixed here: time, randomness,
garbage collection and the threads that wait for time to pass.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import io
import itertools
import json
import operator
import os
import platform
import queue
import random
import re
import selectors
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, get_type_hints

# The clock advances by this with each operation: enough to stay below all limits per second, and too little for
# anything periodic to become due within a section.
_TICK_SECONDS = 0.002
_EARLY_SECONDS = 1_900_000_000.0
_LONG_SECONDS = 120.0
_QUIET_ROUNDS = 30
_ROUND_SECONDS = 0.01


class EndlessQueue(queue.SimpleQueue[Any]):
    """A queue whose readers wait without a timeout, because no time passes meanwhile."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002 - as it is there
        return super().get(block)


class EndlessSelector(selectors.DefaultSelector):
    """The same for the event loop. It also counts items, which shows when no more come."""

    events = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout == 0 else None)
        self.events += len(ready)
        return ready


class World:
    """Time and randomness. They change only on command.

    The engine decides by the clock: a store with quick commits is used on the event loop, a slow one from a thread.
    Under valgrind everything is slow. The replacements are C functions, so they add no Python calls.
    """

    def __init__(self) -> None:
        self._seconds = [_EARLY_SECONDS]
        self._nanoseconds = [0]
        self._chance = io.BytesIO(random.Random(0).randbytes(1 << 20))
        self.tick()

    def fix(self) -> None:
        """Replace the real ones. This happens before the engine is imported, which binds some of them at import."""
        for name in ("time", "monotonic", "perf_counter"):
            setattr(time, name, functools.partial(operator.getitem, self._seconds, 0))
            setattr(time, f"{name}_ns", functools.partial(operator.getitem, self._nanoseconds, 0))
        wait = threading.Event.wait
        fixed: list[tuple[Any, str, Any]] = [
            (threading.Event, "wait", lambda event, timeout=None: wait(event)),
            (queue, "SimpleQueue", EndlessQueue),
            (os, "urandom", self._chance.read),
        ]
        for owner, name, replacement in fixed:
            setattr(owner, name, replacement)
        random.seed(0)
        sys.setswitchinterval(1_000)  # threads switch only where one of them waits

    def tick(self, seconds: float = _TICK_SECONDS) -> None:
        """Let time pass and reset randomness: ids then depend only on their instant."""
        self._seconds[0] += seconds
        self._nanoseconds[0] = round(self._seconds[0] * 1e9)
        self._chance.seek(0)


world = World()
world.fix()

import apsw  # noqa: E402 - in the fixed world

from holdfast import Context, Holdfast, Registry  # noqa: E402 - likewise


def store_of(hf: Holdfast) -> Any:
    """Return the store of a Holdfast, also of an older revision that the workload is compared with."""
    return hf._session.store if hasattr(hf, "_session") else hf.store  # type: ignore[attr-defined]  # noqa: SLF001


STEPS = 5
_LEASE_SECONDS = 86_400.0
_CONCURRENCY = 20
_COMMITS = 40
"""Number of operations after which the SQLite store has allocated its log, which it does once."""

registry = Registry()


@registry.step
async def count_up(number: int) -> int:
    return number + 1


@registry.workflow("measured.steps")
async def steps(ctx: Context, count: int) -> int:
    number = 0
    while number < count:
        number = await count_up(number)
    return number


if hasattr(registry, "pipeline"):  # not in older revisions
    counting = registry.pipeline(
        "measured.pipeline", *(Registry().step(f"count {n}")(count_up.function) for n in range(STEPS))
    )


@registry.workflow("measured.message")
async def steps_and_message(ctx: Context, count: int) -> int:
    number = 0
    while number < count:
        number = await count_up(number)
    await ctx.receive("go")
    return number


# Operations


class Operation(ABC):
    """An operation that is repeated. `prepare` is not counted."""

    has_worker = True

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf

    async def prepare(self, sizes: Sequence[int]) -> None:
        """Create what `perform` needs, for all sizes it will be called with."""
        return

    @abstractmethod
    async def perform(self, size: int) -> None: ...

    async def start_waiting(self, counts: Sequence[int]) -> list[Any]:
        """Create runs that wait for a message after this many steps, and have left the worker's memory."""
        world.tick()
        runs = await self.hf.start_many(steps_and_message, [(count,) for count in counts])
        while [run async for run in self.hf.list(type=steps_and_message.type, state=["pending", "running"], limit=1)]:
            await asyncio.sleep(0)
        return list(runs)


class Step(Operation):
    """A step of many five-step workflows at once, with its fifth of a start and of an end."""

    async def perform(self, size: int) -> None:
        world.tick()
        runs = await self.hf.start_many(steps, [(STEPS,)] * size)
        await asyncio.gather(*(run.result() for run in runs))


class PipelineStep(Operation):
    """A step of many five-step pipelines at once, with its fifth of a start and of an end."""

    async def perform(self, size: int) -> None:
        world.tick()
        runs = await self.hf.start_many(counting, [(0,)] * size)
        await asyncio.gather(*(run.result() for run in runs))


class LoneStep(Operation):
    """One step after another in one run, with nothing else going on."""

    async def perform(self, size: int) -> None:
        world.tick()
        await self.hf.execute(steps, size)


class Start(Operation):
    """Creation of a run without a worker."""

    has_worker = False

    async def perform(self, size: int) -> None:
        for _ in range(size):
            world.tick()
            await self.hf.start(steps, STEPS)
            await asyncio.sleep(0)  # the second of two in one round of the loop would go to a thread


class Message(Operation):
    """A message to a suspended run: sent, claimed, received, until the end of the run is known."""

    async def prepare(self, sizes: Sequence[int]) -> None:
        self._runs = iter(await self.start_waiting([0] * sum(sizes)))

    async def perform(self, size: int) -> None:
        for run in itertools.islice(self._runs, size):
            world.tick()
            await run.send("go")
            await run.result()


class Claim(Operation):
    """One claim of one run."""

    has_worker = False

    async def prepare(self, sizes: Sequence[int]) -> None:
        world.tick()
        await self.hf.start_many(steps, [(STEPS,)] * sum(sizes))
        made_by: Callable[..., Any] = get_type_hints(type(store_of(self.hf)).claim)["request"]
        self._request = functools.partial(
            made_by,
            worker="claimer",
            types=(steps.type,),
            limit=1,
            lease=round(_LEASE_SECONDS * 1e6),
            python=platform.python_version(),
        )
        self._numbers = itertools.count()

    async def perform(self, size: int) -> None:
        for number in itertools.islice(self._numbers, size):
            world.tick()
            claimed = await store_of(self.hf).claim(self._request(id=f"claim-{number}"))
            assert len(claimed.leases) == 1
            await asyncio.sleep(0)


class Replay(Operation):
    """An entry of a history that a worker loads and replays to continue the run."""

    async def prepare(self, sizes: Sequence[int]) -> None:
        self._runs = {size: (await self.start_waiting([size]))[0] for size in sizes}

    async def perform(self, size: int) -> None:
        world.tick()
        await self._runs[size].send("go")
        assert await self._runs[size].result() == size


OPERATIONS: dict[str, type[Operation]] = {
    "step": Step,
    "pipeline": PipelineStep,
    "lone-step": LoneStep,
    "start": Start,
    "message": Message,
    "claim": Claim,
    "replay": Replay,
}


# Meters


class Meter(Protocol):
    """Counts between `begin` and `end`; `end` is called as soon as a section is over."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


class CallgrindMeter:
    """Lets callgrind write its counts and start from zero: it watches for calls of `ctermid`."""

    def begin(self) -> None:
        os.ctermid()

    def end(self) -> None:
        os.ctermid()


class PerfMeter:
    """Lets `perf stat` count only within sections, over the file descriptors of its option `--control`."""

    def __init__(self, control: int, acknowledged: int) -> None:
        self._control = control
        self._acknowledged = acknowledged

    def begin(self) -> None:
        self._say(b"enable\n")

    def end(self) -> None:
        self._say(b"disable\n")

    def _say(self, word: bytes) -> None:
        os.write(self._control, word)
        os.read(self._acknowledged, 16)


class CountsMeter:
    """Counts Python calls of all threads, and the numbers that `read` returns about the store."""

    def __init__(self, read: Callable[[], dict[str, int]]) -> None:
        self.sections: list[dict[str, int]] = []
        self._read = read
        self._calls = 0
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def begin(self) -> None:
        self._before = {**self._read(), "calls": self._calls}

    def end(self) -> None:
        now = {"calls": self._calls, **self._read()}
        self.sections.append({name: number - self._before[name] for name, number in now.items()})

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename != __file__:
            self._calls += 1


class SqliteCounts(apsw.VFS):
    """Counts statements, and bytes written to the log. The log is preallocated, so its size says nothing."""

    def __init__(self) -> None:
        self._below = apsw.vfs_names()[0]
        self._statements = 0
        self._log_bytes = 0
        super().__init__("counting", self._below, makedefault=True)
        apsw.connection_hooks.append(self._opened)

    def read(self) -> dict[str, int]:
        return {"statements": self._statements, "wal_bytes": self._log_bytes}

    def written(self, data: bytes) -> None:
        self._log_bytes += len(data)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        if flags[0] & apsw.SQLITE_OPEN_WAL:
            return _Log(self, self._below, name, flags)
        return super().xOpen(name, flags)

    def _opened(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._traced)

    def _traced(self, _event: object) -> None:
        self._statements += 1


class _Log(apsw.VFSFile):
    def __init__(self, counts: SqliteCounts, below: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._counts = counts
        super().__init__(below, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        self._counts.written(data)
        super().xWrite(data, offset)


def count_postgres(url: str, log: Path) -> Callable[[], dict[str, int]]:
    """Return a function that counts statements, from the server's log, and bytes of the write-ahead log."""
    import psycopg

    position = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
    line = re.compile(rf"LOG:  (?:statement|execute [^:]+): (?!{re.escape(position)})")
    connection = psycopg.connect(url, autocommit=True)

    def read() -> dict[str, int]:
        statements = len(line.findall(log.read_text(errors="replace")))
        row = connection.execute(position.encode()).fetchone()
        assert row is not None
        return {"statements": statements, "wal_bytes": int(row[0])}

    return read


# Measuring


async def measure(url: str, name: str, sizes: Sequence[int], meter: Meter, selector: EndlessSelector) -> None:
    settle = functools.partial(_settle, selector)
    async with Holdfast(_without_hints(url)) as hf:
        hf.include(registry)
        operation = OPERATIONS[name](hf)
        worker = hf.worker(concurrency=_CONCURRENCY, lease_seconds=_LEASE_SECONDS, name="measured")
        if operation.has_worker:
            await worker.start()
        await settle()
        await _warm_up(hf)
        await settle()
        warm_up = sizes[0] // 2
        await operation.prepare([warm_up, *sizes])
        await settle()
        await operation.perform(warm_up)
        gc.collect()
        gc.freeze()
        gc.disable()
        for size in sizes:
            await settle()
            world.tick(_LONG_SECONDS)  # fire what is due now, and drop cancelled timers
            _empty_log(url)
            await settle()
            meter.begin()
            await operation.perform(size)
            if operation.has_worker:
                await worker.run_until_idle()  # its last read of the queue belongs to the section
            _wait_for_threads()  # so does what the writer does after its last answer
            meter.end()
        if isinstance(meter, CountsMeter):
            print(json.dumps(meter.sections), flush=True)
        os._exit(0)  # an orderly end adds nothing, and takes valgrind a while


async def _warm_up(hf: Holdfast) -> None:
    for _ in range(_COMMITS):
        world.tick()
        await hf.start(steps, STEPS, delay=_LEASE_SECONDS)
        await asyncio.sleep(0)


async def _settle(selector: EndlessSelector) -> None:
    """Wait until nothing has come for a while, and no other thread uses the processor or wants to."""
    quiet, before = 0, (0, 0.0)
    while quiet < _QUIET_ROUNDS:
        await asyncio.sleep(0)
        time.sleep(_ROUND_SECONDS)  # noqa: ASYNC251 - the loop is to stand still while threads finish
        now = selector.events, round(time.process_time() - time.thread_time(), 3)
        quiet = quiet + 1 if now == before and not _is_another_thread_busy() else 0
        before = now


def _wait_for_threads() -> None:
    """Wait within a section until no other thread has anything left to do. This adds no Python calls."""
    quiet, before = 0, -1.0
    while quiet < _QUIET_ROUNDS:
        time.sleep(_ROUND_SECONDS)
        now = time.process_time() - time.thread_time()
        quiet = quiet + 1 if abs(now - before) < _ROUND_SECONDS / 10 and not _is_another_thread_busy() else 0
        before = now


def _is_another_thread_busy() -> bool:
    """True if a thread runs, waits for the processor, or waits for the disk; where the system shows it."""
    if not os.access("/proc/self/task", os.R_OK):
        return False
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - pathlib would add Python calls
        if int(thread) != os.getpid():
            file = os.open(f"/proc/self/task/{thread}/stat", os.O_RDONLY)
            state = os.read(file, 1_000).rpartition(b")")[2].split()[0]
            os.close(file)
            if state != b"S":
                return True
    return False


def _without_hints(url: str) -> str:
    """Disable the hint thread of Postgres, whose work depends on real time."""
    return url if url.startswith("sqlite:") else f"{url}&hints=off"


def _empty_log(url: str) -> None:
    """Copy the log of SQLite back, so that the store does not do it within the section, beside the work."""
    if url.startswith("sqlite:"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        connection.close()


def _meter(given: argparse.Namespace) -> Meter:
    if given.meter == "callgrind":
        return CallgrindMeter()
    if given.meter == "perf":
        return PerfMeter(*given.control)
    return CountsMeter(SqliteCounts().read if given.log is None else count_postgres(given.url, given.log))


def _check_source(folder: Path) -> None:
    import holdfast

    found = Path(str(holdfast.__file__))
    if not found.is_relative_to(folder):
        sys.exit(f"measured {found}, which is not below {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("--url", required=True, help="an empty store")
    parser.add_argument("--source", type=Path, required=True, help="the folder that the engine has to come from")
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="one section for each")
    parser.add_argument("--meter", choices=["callgrind", "perf", "counts"], required=True)
    parser.add_argument("--control", type=int, nargs=2, help="file descriptors, for perf")
    parser.add_argument("--log", type=Path, help="the log of the Postgres server, for counts")
    given = parser.parse_args()
    _check_source(given.source)
    meter, selector = _meter(given), EndlessSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(measure(given.url, given.operation, given.sizes, meter, selector))


if __name__ == "__main__":
    main()
