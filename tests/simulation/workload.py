"""The workload of holdfast's own simulations: the random programs and the crowd of a plan."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import cast

from holdfast import Context, HoldfastError, Registry, StoreUnavailable
from holdfast.app import session_of
from holdfast.core.entries import FLOW_LOCATION
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.runner.context import requests_of
from holdfast.testing.simulation.adversity import HORIZON_SECONDS
from holdfast.testing.simulation.member import AGAIN_SECONDS, Member
from holdfast.testing.simulation.watch import Violation
from holdfast.testing.simulation.workload import Workload
from holdfast.testing.simulation.world import LOOK_SECONDS, World
from tests.programs import performer
from tests.programs.changed import Change, ChangedPerformer
from tests.programs.comparison import Played, problems
from tests.programs.expectation import ExpectedOutcome
from tests.programs.flow_text import FlowExpectation, expectation_of
from tests.programs.interpreter import Interpreter, Program, news_of
from tests.programs.ledger import EffectLedger
from tests.simulation import crowd, flows
from tests.simulation.acts import name_of, perform
from tests.simulation.plan import Act, Plan


class ProgramsWorkload(Workload):
    """Performs the acts of a plan, and compares the outcome of its programs with the prediction."""

    callback_limit = 500_000

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ledger = EffectLedger()
        self._expected = {name: Interpreter().root(program, name) for name, program in self._programs()}
        self._expected_flows = {name_of(act): self._expectation_of(act) for act in plan.acts if act.what == "flow"}
        self._publishing: set[asyncio.Task[None]] = set()
        self._world: World
        self._marks: crowd.Marks
        self.may_misfit = bool(plan.deploys)
        self.has_flows = bool(plan.flows or plan.wild_flows)
        seconds = [expected.seconds for expected in self._expected.values()]
        seconds += [expected.seconds for expected in self._expected_flows.values()]
        self.patience_seconds += 2 * max(seconds, default=0.0)

    def build(self, world: World) -> Registry:
        self._world = world
        registry = Registry()
        performer.build(registry, self._ledger, make=self._performer)
        self._marks = crowd.build(registry, self._kill_current)
        flows.build(registry)
        return registry

    def _kill_current(self) -> None:
        process = self._world.loop.process
        assert process is not None
        self._world.kill(process)

    def _programs(self) -> Iterator[tuple[str, Program]]:
        """The programs that have a determined outcome and are started."""
        for act in self._plan.acts:
            if act.what == "program":
                yield name_of(act), self._plan.programs[act.number]

    def _expectation_of(self, act: Act) -> FlowExpectation:
        programs = self._plan.flows if act.what == "flow" else self._plan.wild_flows
        return expectation_of(programs[act.number], name_of(act))

    # Versions of the code

    def _performer(self, ctx: Context, ledger: EffectLedger, peer: str) -> performer.Performer:
        """Return the performer of a run's program, by the code version that this process has now."""
        change = self._change_here()
        if change is None:
            return performer.Performer(ctx, ledger, peer)
        requests = requests_of(ctx)

        def note(location: str) -> None:
            self._world.watch.told[requests.run.id, requests.token] = location

        def forbid(what: str) -> None:
            self._world.end(Violation("I13", what))

        return ChangedPerformer(ctx, ledger, peer, change, forbid=forbid, note=note)

    def _change_here(self) -> Change | None:
        now = self._world.loop.time()
        for deploy in self._plan.deploys:
            member = self._world.members.get(deploy.worker)
            if member is not None and member.process is self._world.loop.process and deploy.at <= now < deploy.until:
                return deploy.change
        return None

    # The play

    async def prepare(self) -> None:
        hf = self._world.outsider()
        await crowd.set_rules(hf)
        if self.has_flows:
            acts = [act for act in self._plan.acts if act.what in ("flow", "wild flow")]
            await flows.register(hf, [self._expectation_of(act) for act in acts])

    async def play(self) -> None:
        world = self._world
        acting = [world.loop.create_task(self._act(act)) for act in self._plan.acts]
        acting += [
            world.loop.create_task(self._cancel_at_hang(name, program))
            for name, program in self._programs()
            if program.get("end") == "cancel"
        ]
        acting += [world.loop.create_task(self._mend(name)) for name in self._expected_flows]
        await asyncio.sleep(HORIZON_SECONDS)
        world.calm()
        while world.state.schedules:
            await world.outsider().schedules.remove("ticks")  # otherwise there would be thousands in the days to come
            await asyncio.sleep(AGAIN_SECONDS)
        await asyncio.gather(*acting)
        await self._end_what_never_ends()

    async def clock_steps_back(self) -> None:
        # An event is for runs that are older by the store's clock: no clock change may come between a run and its
        # events.
        while publishing := {act for act in self._publishing if not act.done()}:
            await asyncio.wait(publishing)

    async def _act(self, act: Act) -> None:
        """Perform an act, and let another process repeat it if this one dies or gets no answer."""
        world = self._world
        await asyncio.sleep(act.at)
        if self._has_news(act):
            self._publishing.add(cast("asyncio.Task[None]", asyncio.current_task()))
        if act.what == "supersede":
            await self._until_started(act.run)
        while True:
            member = world.chance.choice([world.members[slot] for slot in sorted(world.members)])
            if member.process.is_alive and await world.done_in(member.process, partial(self._try, member, act)):
                return
            await asyncio.sleep(AGAIN_SECONDS)

    def _has_news(self, act: Act) -> bool:
        if act.what == "program":
            return bool(news_of(self._plan.programs[act.number]))
        return act.what in ("flow", "wild flow") and bool(self._expectation_of(act).news)

    async def _until_started(self, run_id: str) -> None:
        """Wait until a run has begun: a clock that is set back could make a newer version older than the run."""
        while (record := self._world.state.records.get(run_id)) is None or FLOW_LOCATION not in record.entries:
            if record is not None and record.run.state.is_end:
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _try(self, member: Member, act: Act) -> bool:
        try:
            await session_of(member).open()
            await perform(act, member, self._plan, self._world.watch.accepted)
        except StoreUnavailable:
            return False
        except HoldfastError as refusal:
            self._world.note(member.process, f"{act.what} {act.run}: {refusal}")
        return True

    async def _cancel_at_hang(self, run_id: str, program: Program) -> None:
        """Cancel a run once it only waits."""
        place = f":hang{program['parts'][-1][1][-1][1]}"
        hf = self._world.outsider()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            record = self._world.state.records.get(run_id)
            if record is None:
                continue
            if record.run.state.is_end or (record.run.state is RunState.BLOCKED and not self._plan.deploys):
                raise Violation(
                    "I1", f"{run_id} does not come to where it should wait: {await hf.run(run_id).explain()}"
                )
            if record.run.state is RunState.SUSPENDED and any(w.location.endswith(place) for w in record.waits):
                await hf.run(run_id).cancel("enough")
                return

    async def _mend(self, run_id: str) -> None:
        """Recover a flow whose fragile task has failed, as often as it takes."""
        hf = self._world.outsider()
        until = self._world.loop.time() + HORIZON_SECONDS + self.patience_seconds
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._world.loop.time() > until:
                raise await self._world.stuck(f"flow {run_id} does not end.")
            record = self._world.state.records.get(run_id)
            if record is None:
                continue
            run = record.run
            if run.state is RunState.SUCCEEDED:
                return
            is_crash_loop = run.state is RunState.BLOCKED and run.error is not None and run.error.type == "CrashLoop"
            if run.state.is_end and "not yet repaired" not in str(run.error):
                raise Violation("I4", f"flow {run_id} is {run.state}: {run.error}")
            if run.state.is_end or is_crash_loop:
                await hf.run(run_id).recover()

    async def _end_what_never_ends(self) -> None:
        """Cancel runs that may wait forever. Programs end by themselves."""
        hf = self._world.outsider()
        for act in self._plan.acts:
            if act.what in ("wild", "wild flow"):
                # All of them: one that was recovered alone has no parent that would cancel it.
                for record in flows.family_of(self._world.state, name_of(act)):
                    await hf.run(record.run.id).cancel(force=True)
            if act.what in ("limited", "taker"):
                await hf.run(name_of(act)).cancel()
            if act.what == "deadly":
                await self._world.until(self._is_blocked(act.run))
                await hf.run(act.run).cancel()

    def _is_blocked(self, run_id: str) -> Callable[[], bool]:
        return lambda: self._world.state.records[run_id].run.state is RunState.BLOCKED

    @contextmanager
    def body(self, *, is_stale: bool) -> Iterator[None]:
        before = len(self._ledger.log)
        try:
            yield
        finally:
            if is_stale:  # it does not count, and comes in no order
                del self._ledger.log[before:]

    # The verdict

    def check(self) -> None:
        for name, expected in self._expected.items():
            self._check_program(name, expected)
        state = self._world.state
        for name, expectation in self._expected_flows.items():
            bodies, losses = self._world.watch.bodies, self._plan.losses
            for problem in flows.problems(state, name, expectation, bodies, losses=losses):
                raise Violation(*problem.split(": ", 1))
        crowded = crowd.problems(state, self._world.watch.bodies)
        for problem in chain(crowded, crowd.differences(state, self._marks)):
            raise Violation(*problem.split(": ", 1))

    def _check_program(self, name: str, expected: ExpectedOutcome) -> None:
        records = [
            record
            for record in self._world.state.records.values()
            if record.run.type == "program" and _root_of(record.run) == name
        ]
        histories = {record.run.id: record.history() for record in records}
        played = Played.of([record.details() for record in records], histories, self._ledger)
        # A blocked run drops the unfinished operations of its other branches.
        for problem in problems(expected, played, crashes=self._plan.losses + self._world.watch.misfits):
            raise Violation("I10" if "begun" in problem else "I4", problem)


def _root_of(run: Run) -> str:
    return str(json.loads(run.payload).get("path", "")).partition(" > ")[0]
