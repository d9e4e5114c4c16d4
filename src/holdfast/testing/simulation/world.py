"""A simulated world that plays a workload: processes with workers, blows to them, a watch and a journal.

Everything follows from the adversity and the workload: the same two produce the same journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from holdfast.app import Holdfast, session_of
from holdfast.core import model
from holdfast.core.clock import SECOND
from holdfast.engine.answers import Results
from holdfast.stores.memory import MemoryStore
from holdfast.testing.simulation.adversity import Adversity, Blow
from holdfast.testing.simulation.clock import StoreClock
from holdfast.testing.simulation.loop import EndlessWork, Process, SimulatedLoop, settle
from holdfast.testing.simulation.member import POLL, Member
from holdfast.testing.simulation.network import Network
from holdfast.testing.simulation.watch import Violation, Watch
from holdfast.testing.simulation.workload import Workload

RESTART_SECONDS = 3.0
LOOK_SECONDS = 120.0
TAIL_LINES = 60


class World:
    """Plays one workload under one adversity."""

    def __init__(
        self, adversity: Adversity, workload: Workload, *, journal: Callable[[str], None] | None = None
    ) -> None:
        self.adversity = adversity
        self.workload = workload
        self._journal = journal
        self.chance = random.Random(f"world {adversity.chance}")
        self.loop = SimulatedLoop(
            pause=lambda: self.chance.random() * 0.01, on_error=self._fail, callback_limit=workload.callback_limit
        )
        self.clock = StoreClock(self.loop)
        self.store = MemoryStore(clock=self.clock)
        self.state = self.store._state  # noqa: SLF001 - the watch looks inside
        self.watch = Watch(self.state, self.clock.now, self.clock.passed, may_misfit=workload.may_misfit)
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.violation: Violation | None = None
        self.members: dict[int, Member] = {}
        """The current process of each slot."""
        self._digest = hashlib.sha256()
        self._everybody: list[Member] = []
        self._faults = {
            slot: {(fault.call, fault.number): fault.what for fault in adversity.faults if fault.worker == slot}
            for slot in range(adversity.workers)
        }
        self._outside: Holdfast | None = None
        self._over = self.loop.create_future()
        self.registry = workload.build(self)

    # The journal and the result

    @property
    def digest(self) -> str:
        """A hash of the whole journal so far."""
        return self._digest.hexdigest()[:16]

    def note(self, process: Process | None, what: str, *, is_news: bool = True) -> None:
        """Write a line into the journal. Lines without news are left out of `tail`, the last events of a failure."""
        line = f"{self.loop.time():14.6f} {process.name if process else '-':<6} {what}"
        self._digest.update(line.encode())
        if is_news:
            self.tail.append(line)
        if self._journal is not None:
            self._journal(line)

    def monotonic_ns(self) -> int:
        return round(self.loop.time() * 1e9)

    def effort(self) -> float:
        """Return how many seconds a body takes: mostly almost none, rarely more than a lease."""
        return self.chance.choice((0.0, 0.0, 0.01, 1.0, self.chance.random() * 20, self.chance.random() * 90))

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """End the simulation if the block raises a violation."""
        try:
            yield
        except Violation as violation:
            self.end(violation)

    def end(self, violation: Violation | None) -> None:
        """End the simulation, with a violation or because everything is done. The first violation stays."""
        self.violation = self.violation or violation
        if not self._over.done():
            self._over.set_result(None)

    def check_result(self) -> None:
        """Raise the violation, if there is one."""
        if self.violation is not None:
            raise self.violation

    def _fail(self, context: dict[str, Any]) -> None:
        """End the simulation with an uncaught error, which an event loop would only log."""
        self.end(Violation("error", f"{context.get('message')}: {context.get('exception')!r}"))

    # Processes

    def hire(self, slot: int) -> None:
        """Start a process with a worker in a slot."""
        number = len(self._everybody)
        process = Process(f"w{slot}.{number}")
        network = Network(
            self,
            process,
            self.store,
            random.Random(f"network {self.adversity.chance} {slot} {number}"),
            faults=self._faults[slot],
            slowness=self.adversity.slowness,
            deafness=self.adversity.deafness,
            flushes=self.adversity.flushes,
        )
        member = Member(self, process, network, slot)
        self.members[slot] = member
        self._everybody.append(member)
        self.note(process, "begins")
        self.loop.spawn(process, member.live())

    def kill(self, process: Process) -> None:
        """Kill a process. A new one takes its slot after `RESTART_SECONDS`."""
        if not process.is_alive or self._over.done():
            return
        self.note(process, "dies")
        self.loop.kill(process)
        member = next(one for one in self._everybody if one.process is process)
        self.loop.in_name_of(None, RESTART_SECONDS, self.hire, member.slot)

    def freeze(self, process: Process, seconds: float) -> None:
        """Freeze a process for some seconds."""
        self.note(process, f"freezes for {seconds:g} s")
        self.loop.freeze(process)
        self.loop.in_name_of(None, seconds, self.loop.thaw, process)

    async def strike(self, blow: Blow) -> None:
        """Wait for the time of a blow and carry it out."""
        await asyncio.sleep(blow.at)
        if blow.what == "step":
            await self._set_clock(blow.seconds)
            return
        member = self.members[blow.worker]
        self.note(member.process, f"{blow.what} {blow.seconds:g}")
        match blow.what:
            case "kill":
                self.kill(member.process)
            case "freeze":
                self.freeze(member.process, blow.seconds)
            case "stop" if member.worker_here is not None and member.process.is_alive:
                await self.done_in(member.process, member.worker_here.stop)
                self.kill(member.process)
            case _:
                pass  # a stop that comes before the worker has started

    async def _set_clock(self, seconds: float) -> None:
        if seconds < 0:
            await self.workload.clock_steps_back()
        self.note(None, f"the clock is set {seconds:+g}")
        self.clock.set(round(seconds * SECOND))

    def done_in(self, process: Process, work: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
        """Do some work in a process and return a future of its result: None if the process dies before it is done."""
        done = self.loop.create_future()

        async def carry_out() -> None:
            value, error = None, None
            try:
                value = await work()
            except Exception as raised:  # noqa: BLE001 - the caller gets it
                error = raised
            self.loop.in_name_of(None, 0, settle, done, value, error)

        self.loop.spawn(process, carry_out())
        process.on_death.append(lambda: settle(done, None, None))
        return done

    # The play

    def play(self) -> None:
        """Play the workload to its end. Afterwards, `violation` says what went wrong."""
        chance = random.Random(f"ids {self.adversity.chance}")
        before = random.getstate()
        random.seed(f"engine {self.adversity.chance}")
        logging.disable(logging.CRITICAL)
        try:
            with model.repeatable(lambda: self.clock.now() * 1_000, chance.randbytes):
                self._run()
                self.loop.run_until_complete(self._tidy())
        finally:
            logging.disable(logging.NOTSET)
            random.setstate(before)
            self.loop.close()

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self._direct())
        except EndlessWork as error:
            self.end(Violation("I1", str(error)))
            self.loop.forgive()

    async def _direct(self) -> None:
        for slot in range(self.adversity.workers):
            self.hire(slot)
        playing = self.loop.create_task(self._play_all())
        playing.add_done_callback(self._played)
        await self._over

    def _played(self, playing: asyncio.Task[None]) -> None:
        error = None if playing.cancelled() else playing.exception()
        if error is None or isinstance(error, Violation):
            self.end(error)
        elif not self._over.done():
            self._over.set_exception(error)  # a bug of the simulation itself

    async def _play_all(self) -> None:
        await self.workload.prepare()
        striking = [self.loop.create_task(self.strike(blow)) for blow in self.adversity.blows]
        await self.workload.play()
        self.calm()
        await asyncio.gather(*striking)
        records = self.state.records
        await self.until(lambda: all(self.workload.is_settled(record.run) for record in records.values()))
        self.watch.finish()
        self.workload.check()

    def calm(self) -> None:
        """Drop all faults that have not happened yet."""
        for faults in self._faults.values():
            faults.clear()

    def outsider(self) -> Holdfast:
        """Return a Holdfast outside of all processes, which no fault affects."""
        if self._outside is None:
            network = Network(self, Process("out"), self.store, random.Random(0), faults={}, slowness=0.0, deafness=0.0)
            self._outside = _outsider(network)
            self._outside.include(self.registry)
        return self._outside

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass until a condition holds. Raise a violation after the patience of the workload."""
        until = self.loop.time() + self.workload.patience_seconds
        while not is_so():
            if self.loop.time() > until:
                raise await self.stuck("not all runs have settled.")
            await asyncio.sleep(LOOK_SECONDS)

    async def stuck(self, what: str) -> Violation:
        """Return the violation that runs do not end. It explains what the first three of them wait for."""
        hf = self.outsider()
        stuck = [record.run for record in self.state.records.values() if not record.run.state.is_end]
        told = [f"{run.id}: {await hf.run(run.id).explain()}" for run in stuck[:3]]
        return Violation("I1", " ".join([what, *told]))

    async def _tidy(self) -> None:
        """Stop all workers and tasks, so that nothing of this world stays in memory."""
        for member in self._everybody:
            member.network.shut()
            member.process.is_alive = True
            self.loop.thaw(member.process)
            if member.worker_here is not None:
                await member.worker_here.kill()
        others = asyncio.all_tasks(self.loop) - {asyncio.current_task(self.loop)}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _outsider(network: Network) -> Holdfast:
    """Return a Holdfast that polls for ends once an hour: polling every second would be slow over a simulated month."""
    hf = Holdfast("memory://", store=network.as_store)
    session_of(hf).make_results = lambda store: Results(store, poll_seconds=POLL / SECOND)
    return hf
