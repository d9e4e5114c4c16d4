"""The outcome of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.testing.simulation.world import World
from tests.simulation.plan import Plan, plan_of
from tests.simulation.workload import ProgramsWorkload


@dataclass
class SeedOutcome:
    """The outcome of one plan: its journal's digest, and the failure, if any."""

    seed: int
    digest: str
    rule: str = ""
    what: str = ""
    tail: tuple[str, ...] = ()


def world_of(plan: Plan, journal: Callable[[str], None] | None = None) -> World:
    """Return a world in which a plan can be played, once."""
    return World(plan, ProgramsWorkload(plan), journal=journal)


def played(plan: Plan) -> SeedOutcome:
    """Play one plan."""
    world = world_of(plan)
    world.play()
    violation = world.violation
    if violation is None:
        return SeedOutcome(plan.chance, world.digest)
    return SeedOutcome(plan.chance, world.digest, violation.rule, str(violation), tuple(world.tail))


def play_seeds(seeds: range) -> list[SeedOutcome]:
    """Play the plans of some seeds."""
    return [played(plan_of(seed)) for seed in seeds]
