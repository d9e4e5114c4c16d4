"""A plan: all that happens in a simulation of holdfast, as plain data. A seed makes one."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from holdfast.testing.simulation.adversity import HORIZON_SECONDS, Adversity, adversity_of, soon
from tests.programs.changed import CHANGES, Change
from tests.programs.flow_text import FlowProgram
from tests.programs.flow_vocabulary import FlowGardener
from tests.programs.interpreter import Program
from tests.programs.vocabulary import Gardener

DEPLOYS_SHARE = 0.4
"""Share of plans in which two versions of the code run."""

FLOWS_SHARE = 0.5
"""Share of plans with flows."""


class Act(msgspec.Struct, omit_defaults=True):
    """An act of a producer at some time: `what` it does, to which run, with which number."""

    at: float
    what: str
    run: str = ""
    number: int = 0


class Deploy(msgspec.Struct):
    """Another version of the code in one process for some time: the change, and the changed steps."""

    at: float
    until: float
    worker: int
    change: Change


class Plan(Adversity):
    """The events of a simulation, and its faults."""

    programs: list[Program] = []
    wild: list[Program] = []
    flows: list[FlowProgram] = []
    wild_flows: list[FlowProgram] = []
    acts: list[Act] = []
    deploys: list[Deploy] = []

    @property
    def losses(self) -> int:
        """Maximum number of workers that were lost, or seemed lost, with their work."""
        return len(self.blows) + len(self.faults) + 3 * sum(act.what == "deadly" for act in self.acts)


def plan_of(seed: int) -> Plan:
    """Return the plan that a seed makes."""
    chance = random.Random(f"plan {seed}")
    plan = Plan(**msgspec.structs.asdict(adversity_of(seed)))
    plan.programs = [_grown(seed, place) for place in range(chance.choice([1, 1, 2, 3]))]
    for place in range(len(plan.programs)):
        plan.acts.append(Act(at=soon(chance), what="program", number=place))
    _add_crowd(plan, chance, seed)
    _add_deploys(plan, random.Random(f"deploys {seed}"))
    _add_recoveries(plan, random.Random(f"recoveries {seed}"))
    _add_flows(plan, random.Random(f"flows {seed}"), seed)
    plan.acts.sort(key=lambda act: act.at)
    return plan


def _grown(seed: int, place: int) -> Program:
    return Gardener(f"{seed} {place}", count=1_000 * (place + 1)).grow()


def _add_crowd(plan: Plan, chance: random.Random, seed: int) -> None:
    """Add runs without a determined outcome, and acts on them."""
    if chance.random() < 0.4:
        plan.wild = [_grown(seed, 10 + place) for place in range(chance.choice([1, 2]))]
    for share, some in CROWD:
        if chance.random() < share:
            plan.acts += some(chance)
    for place in range(len(plan.wild)):
        plan.acts += _wild(chance, place)


def _wild(chance: random.Random, place: int) -> list[Act]:
    begin = soon(chance)
    return [Act(at=begin, what="wild", number=place), *_controls(chance, begin, f"wild{place}")]


def _controls(chance: random.Random, begin: float, run: str) -> list[Act]:
    """Return what people do to a run that may end in any way."""
    acts = []
    for _ in range(chance.randint(1, 4)):
        what = chance.choice(["cancel", "pause", "resume", "resume", "wake", "evict", "recover", "rewind"])
        at = begin + chance.choice([0.0, 0.002, chance.random() * 2, chance.random() * 60])
        acts.append(Act(at=round(at, 3), what=what, run=run, number=chance.randint(0, 9)))
    return acts


def _add_flows(plan: Plan, chance: random.Random, seed: int) -> None:
    """Add flows with a determined outcome to some plans, and flows under control beside them."""
    if chance.random() > FLOWS_SHARE:
        return
    plan.flows = [_flow(seed, place) for place in range(chance.choice([1, 1, 2]))]
    plan.wild_flows = [_flow(seed, 10 + place) for place in range(chance.choice([0, 1, 2]))]
    for place in range(len(plan.flows)):
        plan.acts.append(Act(at=soon(chance), what="flow", number=place))
        if chance.random() < 0.3:
            plan.acts.append(Act(at=soon(chance), what="supersede", run=f"flow{place}"))
    for place in range(len(plan.wild_flows)):
        begin, run = soon(chance), f"wildflow{place}"
        plan.acts += [Act(at=begin, what="wild flow", number=place), *_controls(chance, begin, run)]
        for _ in range(chance.choice([0, 1, 2])):
            at = round(chance.random() * HORIZON_SECONDS, 3)
            what = chance.choice(["recover family", "rewind"])
            plan.acts.append(Act(at=at, what=what, run=run, number=chance.randint(0, 99)))


def _flow(seed: int, place: int) -> FlowProgram:
    return FlowGardener(f"flow {seed} {place}", count=1_000 * (place + 1)).grow()


def _add_recoveries(plan: Plan, chance: random.Random) -> None:
    """Recover whole families that failed, parents and children in any order."""
    for place in range(len(plan.wild)):
        for _ in range(chance.choice([0, 1, 2])):
            at = round(chance.random() * HORIZON_SECONDS, 3)
            plan.acts.append(Act(at=at, what="recover family", run=f"wild{place}", number=chance.randint(0, 9)))


def _mailbox(chance: random.Random) -> list[Act]:
    return [Act(at=soon(chance), what="mailbox", run="mailbox", number=chance.randint(1, 5))]


def _limited(chance: random.Random) -> list[Act]:
    count = chance.randint(3, 7)
    acts = [Act(at=soon(chance), what="limited", run=f"limited{place}", number=place) for place in range(count)]
    if chance.random() < 0.5:
        what = chance.choice(["cancel", "pause"])
        acts.append(Act(at=soon(chance), what=what, run=f"limited{chance.randrange(count)}"))
    return acts


def _queue(chance: random.Random) -> list[Act]:
    takers = [
        Act(at=soon(chance), what="taker", run=f"taker{place}", number=chance.choice([0, 0, 3, 20]))
        for place in range(chance.randint(1, 4))
    ]
    return takers + [Act(at=soon(chance), what="offer", number=place) for place in range(chance.randint(1, 5))]


def _schedule(chance: random.Random) -> list[Act]:
    return [Act(at=soon(chance), what="schedule", number=chance.choice([7, 30, 91]))]


def _rated(chance: random.Random) -> list[Act]:
    begin = soon(chance)
    return [Act(at=begin, what="rated", run=f"rated{place}") for place in range(chance.randint(3, 5))]


def _keyed(chance: random.Random) -> list[Act]:
    return [Act(at=soon(chance), what="keyed") for _ in range(3)]


def _delayed(chance: random.Random) -> list[Act]:
    delayed = Act(at=soon(chance), what="delayed", run="delayed", number=chance.randint(50, 150))
    return [delayed, Act(at=soon(chance), what="wake", run="delayed")]


def _pruned(chance: random.Random) -> list[Act]:
    return [Act(at=soon(chance) + each * 50, what="prune") for each in range(5)]


def _deadly(chance: random.Random) -> list[Act]:
    return [Act(at=soon(chance), what="deadly", run=f"deadly{place}") for place in range(chance.choice([1, 2]))]


CROWD: tuple[tuple[float, Callable[[random.Random], list[Act]]], ...] = (
    (0.4, _mailbox),
    (0.4, _limited),
    (0.25, _queue),
    (0.2, _schedule),
    (0.2, _rated),
    (0.2, _keyed),
    (0.2, _delayed),
    (0.2, _pruned),
    (0.1, _deadly),
)
"""Number of plans with each kind of act besides programs."""


def _add_deploys(plan: Plan, chance: random.Random) -> None:
    """Add bad deploys to some plans: for a while some workers, or all, have code that does not fit the histories."""
    if chance.random() > DEPLOYS_SHARE:
        return
    for _ in range(chance.choice([1, 1, 2, 3])):
        at = chance.choice([0.0, chance.random() * 5, chance.random() * 60, chance.random() * HORIZON_SECONDS / 2])
        until = min(at + chance.choice([60.0, chance.random() * HORIZON_SECONDS]), HORIZON_SECONDS)
        change = Change(what=chance.choice(CHANGES), number=chance.randrange(2))
        workers = range(plan.workers) if chance.random() < 0.5 else [chance.randrange(plan.workers)]
        plan.deploys += [
            Deploy(at=round(at, 3), until=round(until, 3), worker=worker, change=change) for worker in workers
        ]
