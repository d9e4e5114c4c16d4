"""The world in which a plan is played: processes with workers, producers in them, blows that befall them, a journal.

Whatever happens follows from the plan alone. The same plan gives the same journal, to the last line.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, cast

from holdfast.app import Holdfast, session_of
from holdfast.core import ids
from holdfast.core.clock import SECOND
from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.engine.results import Results
from holdfast.runner.context import Context
from holdfast.runner.registry import Registry
from holdfast.stores.memory import MemoryStore
from holdfast.testing.programs import performer
from holdfast.testing.programs.changed import Change, ChangedPerformer
from holdfast.testing.programs.comparison import Played, problems
from holdfast.testing.programs.expectation import ExpectedOutcome
from holdfast.testing.programs.interpreter import Interpreter, Program, news_of
from holdfast.testing.programs.ledger import EffectLedger
from holdfast.testing.simulation import crowd
from holdfast.testing.simulation.acts import name_of, perform
from holdfast.testing.simulation.clock import StoreClock
from holdfast.testing.simulation.loop import EndlessWork, Process, SimulatedLoop, settle
from holdfast.testing.simulation.member import AGAIN_SECONDS, POLL, Member
from holdfast.testing.simulation.network import Network
from holdfast.testing.simulation.plan import HORIZON_SECONDS, Act, Blow, Plan
from holdfast.testing.simulation.watch import Violation, Watch

RESTART_SECONDS = 3.0
LOOK_SECONDS = 120.0
DAY_SECONDS = 86_400.0
PATIENCE_SECONDS = 30 * DAY_SECONDS
IDLE_DAYS = 100
"""So long nothing happens to any run, and none is due: what a scenario waits for then will never come."""
TAIL_LINES = 60
PLAN_CALLBACKS = 500_000
SCENARIO_CALLBACKS = 5_000_000
"""So much is done at most before it is said that it never ends. A scenario may go on for years: workers that only look
for work do 700,000 in one."""

Scenario = Callable[[Holdfast], Awaitable[object]]
"""What somebody does with workflows of his own, given a Holdfast to whom nothing happens."""

Picture = dict[str, Run | RunState]
"""What is to be seen of all runs at some time."""


class World:
    """Plays one plan; with a scenario, for workflows of somebody else."""

    def __init__(
        self,
        plan: Plan,
        source: Registry | None = None,
        scenario: Scenario | None = None,
        *,
        journal: Callable[[str], None] | None = None,
    ) -> None:
        self.plan = plan
        self._journal = journal
        self._scenario = scenario
        self._chance = random.Random(f"world {plan.chance}")
        self.loop = SimulatedLoop(
            pause=lambda: self._chance.random() * 0.01,
            on_error=self._fail,
            callback_limit=PLAN_CALLBACKS if scenario is None else SCENARIO_CALLBACKS,
        )
        self.clock = StoreClock(self.loop)
        self.store = MemoryStore(clock=self.clock)
        self.state = self.store._state  # noqa: SLF001 - it is watched from inside
        may_misfit = bool(plan.deploys) or scenario is not None
        self.watch = Watch(self.state, self.clock.now, self.clock.passed, may_misfit=may_misfit)
        self.ledger = EffectLedger()
        self._marks = crowd.Marks()
        self.registry = Registry()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.violation: Violation | None = None
        self._digest = hashlib.sha256()
        self._members: dict[int, Member] = {}
        self._everybody: list[Member] = []
        self._publishing: set[asyncio.Task[None]] = set()
        self._faults = {
            slot: {(fault.call, fault.number): fault.what for fault in plan.faults if fault.worker == slot}
            for slot in range(plan.workers)
        }
        self._expected = {name: Interpreter().root(program, name) for name, program in self._programs()}
        self._outside: Holdfast | None = None
        self._over = self.loop.create_future()
        if source is None:
            performer.build(self.registry, self.ledger, make=self._performer)
            self._marks = crowd.build(self.registry, self._kill_current)
        else:
            self.registry.include(source)

    # What happens

    @property
    def digest(self) -> str:
        """A number for the whole journal so far."""
        return self._digest.hexdigest()[:16]

    def note(self, process: Process | None, what: str, *, is_news: bool = True) -> None:
        """Write a line into the journal. What is no news is not among the last events that are told."""
        line = f"{self.loop.time():14.6f} {process.name if process else '-':<6} {what}"
        self._digest.update(line.encode())
        if is_news:
            self.tail.append(line)
        if self._journal is not None:
            self._journal(line)

    def monotonic_ns(self) -> int:
        return round(self.loop.time() * 1e9)

    def effort(self) -> float:
        """How long a body takes: mostly hardly any time, rarely longer than a lease."""
        return self._chance.choice((0.0, 0.0, 0.01, 1.0, self._chance.random() * 20, self._chance.random() * 90))

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Have a violation end the play, wherever it is noticed."""
        try:
            yield
        except Violation as violation:
            self._end(violation)

    def _end(self, violation: Violation | None) -> None:
        self.violation = self.violation or violation
        if not self._over.done():
            self._over.set_result(None)

    def check_result(self) -> None:
        """Raise what went wrong, if anything did."""
        if self.violation is not None:
            raise self.violation

    def _fail(self, context: dict[str, Any]) -> None:
        """An error that nobody has caught, of which an event loop would only write a log."""
        self._end(Violation("error", f"{context.get('message')}: {context.get('exception')!r}"))

    # Processes

    def hire(self, slot: int) -> None:
        """Have a process begin."""
        number = len(self._everybody)
        process = Process(f"w{slot}.{number}")
        network = Network(
            self,
            process,
            self.store,
            random.Random(f"network {self.plan.chance} {slot} {number}"),
            faults=self._faults[slot],
            slowness=self.plan.slowness,
            deafness=self.plan.deafness,
            flushes=self.plan.flushes,
        )
        member = Member(self, process, network, slot)
        self._members[slot] = member
        self._everybody.append(member)
        self.note(process, "begins")
        self.loop.spawn(process, member.live())

    def kill(self, process: Process) -> None:
        """Have a process vanish; another takes its place soon."""
        if not process.is_alive or self._over.done():
            return
        self.note(process, "dies")
        self.loop.kill(process)
        member = next(one for one in self._everybody if one.process is process)
        self.loop.in_name_of(None, RESTART_SECONDS, self.hire, member.slot)

    def freeze(self, process: Process, seconds: float) -> None:
        """Have a process stand still for a while."""
        self.note(process, f"stands still for {seconds:g} s")
        self.loop.freeze(process)
        self.loop.in_name_of(None, seconds, self.loop.thaw, process)

    def _kill_current(self) -> None:
        process = self.loop.process
        assert process is not None
        self.kill(process)

    async def strike(self, blow: Blow) -> None:
        """Let a blow fall."""
        await asyncio.sleep(blow.at)
        if blow.what == "step":
            await self._set_clock(blow.seconds)
            return
        member = self._members[blow.worker]
        self.note(member.process, f"{blow.what} {blow.seconds:g}")
        match blow.what:
            case "kill":
                self.kill(member.process)
            case "freeze":
                self.freeze(member.process, blow.seconds)
            case "stop" if member.worker_here is not None and member.process.is_alive:
                await self._done_in(member.process, member.worker_here.stop)
                self.kill(member.process)
            case _:
                pass  # to be stopped before it has begun

    async def _set_clock(self, seconds: float) -> None:
        # An event is for the runs that are older by the store's clock: none is to come between a run and its events.
        while seconds < 0 and (publishing := {act for act in self._publishing if not act.done()}):
            await asyncio.wait(publishing)
        self.note(None, f"the clock is set {seconds:+g}")
        self.clock.set(round(seconds * SECOND))

    def _done_in(self, process: Process, work: Callable[[], Awaitable[Any]]) -> asyncio.Future[Any]:
        """Have something done by a process. None comes of it if that dies, as nobody there tells us any more."""
        done = self.loop.create_future()

        async def carry_out() -> None:
            value, error = None, None
            try:
                value = await work()
            except Exception as raised:  # noqa: BLE001 - it is for who asked for it
                error = raised
            self.loop.in_name_of(None, 0, settle, done, value, error)

        self.loop.spawn(process, carry_out())
        process.on_death.append(lambda: settle(done, None, None))
        return done

    def _performer(self, ctx: Context, ledger: EffectLedger, peer: str) -> performer.Performer:
        """Who carries out the program of a run, by the version of the code that this process has now."""
        change = self._change_here()
        if change is None:
            return performer.Performer(ctx, ledger, peer)
        requests = ctx.requests

        def told(location: str) -> None:
            self.watch.told[requests.run.id, requests.token] = location

        def forbid(what: str) -> None:
            self._end(Violation("I13", what))

        return ChangedPerformer(ctx, ledger, peer, change, forbid=forbid, told=told)

    def _change_here(self) -> Change | None:
        now = self.loop.time()
        for deploy in self.plan.deploys:
            member = self._members.get(deploy.worker)
            if member is not None and member.process is self.loop.process and deploy.at <= now < deploy.until:
                return deploy.change
        return None

    # Producers

    async def act(self, act: Act) -> None:
        """Have something done, and done again by another if who did it dies or gets no answer."""
        await asyncio.sleep(act.at)
        if act.what == "program" and news_of(self.plan.programs[act.number]):
            self._publishing.add(cast("asyncio.Task[None]", asyncio.current_task()))
        while True:
            member = self._chance.choice([self._members[slot] for slot in sorted(self._members)])
            if member.process.is_alive and await self._done_in(member.process, partial(self._try, member, act)):
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _try(self, member: Member, act: Act) -> bool:
        try:
            await session_of(member).open()
            await perform(act, member, self.plan, self.watch.accepted)
        except StoreUnavailable:
            return False
        except HoldfastError as refusal:
            self.note(member.process, f"{act.what} {act.run}: {refusal}")
        return True

    # The play

    def play(self) -> None:
        """Play the plan to its end; `violation` tells what went wrong."""
        chance = random.Random(f"ids {self.plan.chance}")
        before = random.getstate()
        random.seed(f"engine {self.plan.chance}")
        logging.disable(logging.CRITICAL)
        try:
            with ids.repeatable(lambda: self.clock.now() * 1_000, chance.randbytes):
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
            self._end(Violation("I1", str(error)))
            self.loop.forgive()

    async def _direct(self) -> None:
        for slot in range(self.plan.workers):
            self.hire(slot)
        playing = self.loop.create_task(self._play())
        playing.add_done_callback(self._played)
        await self._over

    def _played(self, playing: asyncio.Task[None]) -> None:
        error = None if playing.cancelled() else playing.exception()
        if error is None or isinstance(error, Violation):
            self._end(error)
        elif not self._over.done():
            self._over.set_exception(error)  # a bug of the simulation itself

    async def _play(self) -> None:
        if self._scenario is None:
            await crowd.set_rules(self._outsider())
        striking = [self.loop.create_task(self.strike(blow)) for blow in self.plan.blows]
        if self._scenario is None:
            await self._play_acts()
        else:
            await self._play_scenario(self._scenario)
        self._calm()
        await asyncio.gather(*striking)
        await self._until_settled()
        self.check()

    async def _play_acts(self) -> None:
        acting = [self.loop.create_task(self.act(act)) for act in self.plan.acts]
        acting += [
            self.loop.create_task(self._cancel_at_hang(name, program))
            for name, program in self._programs()
            if program.get("end") == "cancel"
        ]
        await asyncio.sleep(HORIZON_SECONDS)
        self._calm()
        while self.state.schedules:
            await self._outsider().schedules.remove("ticks")  # or there would be thousands in the days to come
            await asyncio.sleep(AGAIN_SECONDS)
        await asyncio.gather(*acting)
        await self._end_what_never_ends()

    async def _play_scenario(self, scenario: Scenario) -> None:
        playing = asyncio.ensure_future(scenario(self._outsider()))
        days = 0
        before: Picture = {}
        while not playing.done():
            await asyncio.wait([playing], timeout=DAY_SECONDS)
            runs = [record.run for record in self.state.records.values()]
            # One that is blocked is tried again and again, and that is no news.
            now: Picture = {run.id: run.state if run.state is RunState.BLOCKED else run for run in runs}
            is_idle = now == before and all(run.state is RunState.BLOCKED or _rests(run) for run in runs)
            days, before = days + 1 if is_idle else 0, now
            if days > IDLE_DAYS:
                raise await self._stuck("the scenario waits for what never comes.")
        playing.result()

    def _calm(self) -> None:
        """Have nothing go wrong any more but what has begun to."""
        for faults in self._faults.values():
            faults.clear()

    def _programs(self) -> Iterator[tuple[str, Program]]:
        """The programs of which it is determined what comes of them, and which somebody starts."""
        for act in self.plan.acts:
            if act.what == "program":
                yield name_of(act), self.plan.programs[act.number]

    def _outsider(self) -> Holdfast:
        """Somebody outside of all processes, to whom nothing happens."""
        if self._outside is None:
            network = Network(self, Process("out"), self.store, random.Random(0), faults={}, slowness=0.0, deafness=0.0)
            self._outside = _outsider(network)
            self._outside.include(self.registry)
        return self._outside

    async def _cancel_at_hang(self, run_id: str, program: Program) -> None:
        """Cancel a run once it has come to where it only waits."""
        place = f":hang{program['parts'][-1][1][-1][1]}"
        hf = self._outsider()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            record = self.state.records.get(run_id)
            if record is None:
                continue
            if record.run.state.is_end or (record.run.state is RunState.BLOCKED and not self.plan.deploys):
                raise Violation(
                    "I1", f"{run_id} does not come to where it should wait: {await hf.run(run_id).explain()}"
                )
            if record.run.state is RunState.SUSPENDED and any(w.location.endswith(place) for w in record.waits):
                await hf.run(run_id).cancel("enough")
                return

    async def _end_what_never_ends(self) -> None:
        """Cancel what may wait for ever. Programs end by themselves."""
        hf = self._outsider()
        for act in self.plan.acts:
            if act.what == "wild":
                # All of them: one that somebody recovered by itself has no parent any more that would cancel it.
                for run_id in self._family_of(name_of(act)):
                    await hf.run(run_id).cancel(force=True)
            if act.what in ("limited", "taker"):
                await hf.run(name_of(act)).cancel()
            if act.what == "deadly":
                await self._until(partial(self._is_blocked, act.run))
                await hf.run(act.run).cancel()

    def _family_of(self, run_id: str) -> list[str]:
        """A run and everything below it."""
        family = [run_id]
        for parent_id in family:
            family += [record.run.id for record in self.state.records.values() if record.run.parent_id == parent_id]
        return family

    def _is_blocked(self, run_id: str) -> bool:
        return self.state.records[run_id].run.state is RunState.BLOCKED

    async def _until_settled(self) -> None:
        """Let time pass until every run has ended; in a scenario one may wait for what never comes."""
        may_wait = self._scenario is not None

        def is_settled(run: Run) -> bool:
            return run.state.is_end or (may_wait and _rests(run))

        await self._until(lambda: all(is_settled(record.run) for record in self.state.records.values()))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        longest = max((expected.seconds for expected in self._expected.values()), default=0.0)
        until = self.loop.time() + PATIENCE_SECONDS + 2 * longest
        while not is_so():
            if self.loop.time() > until:
                raise await self._stuck("it does not come to its end.")
            await asyncio.sleep(LOOK_SECONDS)

    async def _stuck(self, what: str) -> Violation:
        hf = self._outsider()
        stuck = [record.run for record in self.state.records.values() if not record.run.state.is_end]
        told = [f"{run.id}: {await hf.run(run.id).explain()}" for run in stuck[:3]]
        return Violation("I1", " ".join([what, *told]))

    def check(self) -> None:
        """Hold what came of it all against what must."""
        self.watch.finish()
        for name, expected in self._expected.items():
            self._check_program(name, expected)
        crowded = crowd.problems(self.state, self.watch.bodies)
        for problem in chain(crowded, crowd.differences(self.state, self._marks)):
            raise Violation(*problem.split(": ", 1))

    def _check_program(self, name: str, expected: ExpectedOutcome) -> None:
        records = [
            record
            for record in self.state.records.values()
            if record.run.type == "program" and _root_of(record.run) == name
        ]
        histories = {record.run.id: record.history() for record in records}
        played = Played.of([record.details() for record in records], histories, self.ledger)
        # Whoever is blocked leaves what its other branches were doing.
        for problem in problems(expected, played, crashes=self.plan.losses + self.watch.misfits):
            raise Violation("I10" if "begun" in problem else "I4", problem)

    async def _tidy(self) -> None:
        """Take everything apart, so that nothing of it is left in memory."""
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
    """A Holdfast that waits for ends without looking every second: there may be a month of them."""
    hf = Holdfast("memory://", store=network.as_store)
    session_of(hf).make_results = lambda store: Results(store, poll_seconds=POLL / SECOND)
    return hf


def _rests(run: Run) -> bool:
    """Whether nothing will happen to a run by itself."""
    return run.state.is_end or (run.worker is None and run.ready_at is None)


def _root_of(run: Run) -> str:
    return str(json.loads(run.payload).get("path", "")).partition(" > ")[0]
