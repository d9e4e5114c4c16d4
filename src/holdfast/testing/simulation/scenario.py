"""Simulation of your own workflows: `simulate` plays a scenario under many seeds. It is also a pytest fixture.

    def test_checkout_survives() -> None:
        simulate(hf, scenario, seeds=200)

The same seed produces the same simulation each time, to the last line of its journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.app import Holdfast, session_of
from holdfast.core.errors import InvalidRequest
from holdfast.core.model import Run
from holdfast.core.states import RunState
from holdfast.runner.asyncio_private import get_running_loop_or_none
from holdfast.runner.registry import Registry
from holdfast.testing.simulation.adversity import adversity_of
from holdfast.testing.simulation.workload import DAY_SECONDS, Workload
from holdfast.testing.simulation.world import World

TAIL = 25
"""Number of last events that a failure shows."""

IDLE_DAYS = 100
"""Virtual days without a change to any run, and with no run due, after which a waiting scenario fails."""

Scenario = Callable[[Holdfast], Awaitable[object]]
"""An async function that starts runs on a Holdfast, which no fault affects, and asserts their results."""

Picture = dict[str, Run | RunState]
"""All runs at some time, by id. A blocked run counts only by its state."""


def simulate(source: Holdfast | Registry, scenario: Scenario, *, seeds: int = 100, first: int = 0) -> None:
    """Play a scenario many times, each time with workers that die, freeze, and lose calls and answers.

        def test_checkout_survives() -> None:
            simulate(hf, scenario, seeds=200)

    `source` has the workflows. `scenario` is an async function that gets a `Holdfast`, starts runs and asserts their
    results. Time is virtual. `seeds` is how often it is played, from the seed `first` on; the same seed does the same
    each time. An error of the scenario, or a broken promise of holdfast, is raised with its seed. Call it from a test
    that is not async.
    """
    if seeds < 1:
        raise InvalidRequest(f"seeds={seeds}: expected at least 1")
    if get_running_loop_or_none() is not None:
        raise InvalidRequest("simulate runs its own event loop: call it from a test that is not async")
    registry = session_of(source).registry if isinstance(source, Holdfast) else source
    for seed in range(first, first + seeds):
        world = World(adversity_of(seed), ScenarioWorkload(registry, scenario))
        try:
            world.play()
            world.check_result()
        except BaseException as error:
            lines = "\n".join(list(world.tail)[-TAIL:])
            error.add_note(f"seed {seed}; simulate(…, seeds=1, first={seed}) repeats it. The last events:\n{lines}")
            raise


class ScenarioWorkload(Workload):
    """Plays a scenario to its end, and then lets its runs go on until each has ended or waits for outside input."""

    # A scenario may last for years, and idle workers that only look for work take 700,000 callbacks per year.
    callback_limit = 5_000_000
    may_misfit = True

    def __init__(self, source: Registry, scenario: Scenario) -> None:
        self._source = source
        self._scenario = scenario
        self._world: World

    def build(self, world: World) -> Registry:
        self._world = world
        registry = Registry()
        registry.include(self._source)
        return registry

    async def play(self) -> None:
        world = self._world
        playing = asyncio.ensure_future(self._scenario(world.outsider()))
        days = 0
        before: Picture = {}
        while not playing.done():
            await asyncio.wait([playing], timeout=DAY_SECONDS)
            runs = [record.run for record in world.state.records.values()]
            # Workers try a blocked run again and again, and that is no progress.
            now: Picture = {run.id: run.state if run.state is RunState.BLOCKED else run for run in runs}
            is_idle = now == before and all(run.state is RunState.BLOCKED or self.is_settled(run) for run in runs)
            days, before = days + 1 if is_idle else 0, now
            if days > IDLE_DAYS:
                raise await world.stuck("the scenario waits for something that never happens.")
        playing.result()

    def is_settled(self, run: Run) -> bool:
        """Return True if a run has ended, or waits for something that does not come by itself."""
        return run.state.is_end or (run.worker is None and run.ready_at is None)
