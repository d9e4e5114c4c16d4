"""A plan: all that is to happen in one simulation, as plain data. A seed makes one; what fails is made smaller."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from holdfast.testing.programs.changed import CHANGES, Change
from holdfast.testing.programs.interpreter import Program
from holdfast.testing.programs.vocabulary import Gardener
from holdfast.testing.simulation.network import FAULTS

LOSSES_LIMIT = 5
"""So often at most a worker is lost, or may be taken for it: the steps of programs have a few attempts more."""

HORIZON_SECONDS = 600.0
"""By then everything has been begun, and nothing goes wrong any more."""

DEPLOYS_SHARE = 0.4
"""In so many plans two versions of the code are at work."""

CALLS = {
    "checkpoint": 12,
    "claim": 12,
    "renew": 3,
    "create": 4,
    "look": 3,
    "send": 4,
    "control": 2,
    "fire": 3,
    "emit": 3,
    "due_schedules": 3,
    "offer_types": 1,
    "put_schedules": 1,
    "retire": 1,
    "open": 1,
    "prune": 1,
    "history": 1,
}
"""Faults hit one of the first so many calls of a process, by name; the first more often than the others."""


class Act(msgspec.Struct, omit_defaults=True):
    """Something a producer does at some time: `what` it does, to which run, with which number."""

    at: float
    what: str
    run: str = ""
    number: int = 0


class Blow(msgspec.Struct, omit_defaults=True):
    """Something that befalls a worker, or the store's clock: at some time, for so long."""

    at: float
    what: str
    worker: int = 0
    seconds: float = 0.0


class Fault(msgspec.Struct):
    """What happens to one call of a worker: to the so-manieth of this name that it makes."""

    worker: int
    call: str
    number: int
    what: str


class Deploy(msgspec.Struct):
    """Another version of the code in one process, from some time until another: what is changed in which steps."""

    at: float
    until: float
    worker: int
    change: Change


class Plan(msgspec.Struct):
    """What is to happen. `chance` is the seed of what is left to it: how long things take, which hints get lost."""

    chance: int
    workers: int = 2
    concurrency: int = 5
    flushes: int = 1
    slowness: float = 1.0
    deafness: float = 0.0
    always_replay: bool = False
    programs: list[Program] = []
    wild: list[Program] = []
    acts: list[Act] = []
    blows: list[Blow] = []
    faults: list[Fault] = []
    deploys: list[Deploy] = []

    @property
    def losses(self) -> int:
        """How often a worker may have been lost, or been taken for it, with what it was doing."""
        return len(self.blows) + len(self.faults) + 3 * sum(act.what == "deadly" for act in self.acts)


def adversity_of(seed: int) -> Plan:
    """What goes wrong under a seed, whatever is run."""
    chance = random.Random(f"adversity {seed}")
    plan = Plan(
        chance=seed,
        workers=chance.choice([1, 2, 2, 3, 3, 4]),
        concurrency=chance.choice([1, 2, 5, 20]),
        flushes=chance.choice([1, 1, 2]),
        slowness=chance.choice([0.0, 0.05, 1.0, 1.0, 10.0]),
        deafness=chance.choice([0.0, 0.2, 1.0]),
        always_replay=chance.random() < 0.15,
    )
    _add_blows(plan, chance)
    return plan


def plan_of(seed: int) -> Plan:
    """The plan that a seed makes."""
    chance = random.Random(f"plan {seed}")
    plan = adversity_of(seed)
    plan.programs = [_grown(seed, place) for place in range(chance.choice([1, 1, 2, 3]))]
    for place in range(len(plan.programs)):
        plan.acts.append(Act(at=_soon(chance), what="program", number=place))
    _add_crowd(plan, chance, seed)
    _add_deploys(plan, random.Random(f"deploys {seed}"))
    _add_recoveries(plan, random.Random(f"recoveries {seed}"))
    plan.acts.sort(key=lambda act: act.at)
    return plan


def _grown(seed: int, place: int) -> Program:
    return Gardener(f"{seed} {place}", count=1_000 * (place + 1)).grow()


def _soon(chance: random.Random) -> float:
    return round(chance.choice([0.0, 0.0, chance.random() * 5, chance.random() * HORIZON_SECONDS / 2]), 3)


def _add_crowd(plan: Plan, chance: random.Random, seed: int) -> None:
    """Runs of which it is not determined what comes of them, and what is done to them meanwhile."""
    if chance.random() < 0.4:
        plan.wild = [_grown(seed, 10 + place) for place in range(chance.choice([1, 2]))]
    for share, some in CROWD:
        if chance.random() < share:
            plan.acts += some(chance)
    for place in range(len(plan.wild)):
        plan.acts += _wild(chance, place)


def _wild(chance: random.Random, place: int) -> list[Act]:
    begin = _soon(chance)
    acts = [Act(at=begin, what="wild", number=place)]
    for _ in range(chance.randint(1, 4)):
        what = chance.choice(["cancel", "pause", "resume", "resume", "wake", "recover", "rewind"])
        at = begin + chance.choice([0.0, 0.002, chance.random() * 2, chance.random() * 60])
        acts.append(Act(at=round(at, 3), what=what, run=f"wild{place}", number=chance.randint(0, 9)))
    return acts


def _add_recoveries(plan: Plan, chance: random.Random) -> None:
    """Whole families that went wrong are recovered, parents and children in any order."""
    for place in range(len(plan.wild)):
        for _ in range(chance.choice([0, 1, 2])):
            at = round(chance.random() * HORIZON_SECONDS, 3)
            plan.acts.append(Act(at=at, what="recover family", run=f"wild{place}", number=chance.randint(0, 9)))


def _mailbox(chance: random.Random) -> list[Act]:
    return [Act(at=_soon(chance), what="mailbox", run="mailbox", number=chance.randint(1, 5))]


def _limited(chance: random.Random) -> list[Act]:
    count = chance.randint(3, 7)
    acts = [Act(at=_soon(chance), what="limited", run=f"limited{place}", number=place) for place in range(count)]
    if chance.random() < 0.5:
        what = chance.choice(["cancel", "pause"])
        acts.append(Act(at=_soon(chance), what=what, run=f"limited{chance.randrange(count)}"))
    return acts


def _queue(chance: random.Random) -> list[Act]:
    takers = [
        Act(at=_soon(chance), what="taker", run=f"taker{place}", number=chance.choice([0, 0, 3, 20]))
        for place in range(chance.randint(1, 4))
    ]
    return takers + [Act(at=_soon(chance), what="offer", number=place) for place in range(chance.randint(1, 5))]


def _schedule(chance: random.Random) -> list[Act]:
    return [Act(at=_soon(chance), what="schedule", number=chance.choice([7, 30, 91]))]


def _rated(chance: random.Random) -> list[Act]:
    begin = _soon(chance)
    return [Act(at=begin, what="rated", run=f"rated{place}") for place in range(chance.randint(3, 5))]


def _keyed(chance: random.Random) -> list[Act]:
    return [Act(at=_soon(chance), what="keyed") for _ in range(3)]


def _delayed(chance: random.Random) -> list[Act]:
    delayed = Act(at=_soon(chance), what="delayed", run="delayed", number=chance.randint(50, 150))
    return [delayed, Act(at=_soon(chance), what="wake", run="delayed")]


def _pruned(chance: random.Random) -> list[Act]:
    return [Act(at=_soon(chance) + each * 50, what="prune") for each in range(5)]


def _deadly(chance: random.Random) -> list[Act]:
    return [Act(at=_soon(chance), what="deadly", run=f"deadly{place}") for place in range(chance.choice([1, 2]))]


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
"""What is in how many plans besides programs."""


def _add_deploys(plan: Plan, chance: random.Random) -> None:
    """In some plans, bad deploys: for a while some workers, or all, have code that does not fit what is recorded."""
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


def _add_blows(plan: Plan, chance: random.Random) -> None:
    for _ in range(chance.randint(0, LOSSES_LIMIT)):
        worker = chance.randrange(plan.workers)
        if chance.random() < 0.65:
            call = chance.choice(list(CALLS)[: chance.choice([2, 2, 3, len(CALLS)])])
            number = chance.randint(1, CALLS[call])
            plan.faults.append(Fault(worker=worker, call=call, number=number, what=chance.choice(FAULTS)))
        else:
            what = chance.choice(["kill", "kill", "freeze", "freeze", "stop", "step"])
            seconds = {"freeze": chance.choice([5.0, 100.0, 400.0]), "step": chance.choice([90.0, -90.0, 1000.0])}
            plan.blows.append(Blow(at=_soon(chance), what=what, worker=worker, seconds=seconds.get(what, 0.0)))
