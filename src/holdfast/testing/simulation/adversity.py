"""Adversity: the faults and the number of workers of one simulation, as plain data. A seed determines it."""

from __future__ import annotations

import random

import msgspec

from holdfast.testing.simulation.network import FAULTS

LOSSES_LIMIT = 5
"""Maximum number of faults and blows in one adversity. Each may make a worker lose its runs."""

HORIZON_SECONDS = 600.0
"""Virtual seconds after which nothing new goes wrong."""

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
"""Number of a process's first calls among which a fault chooses one, by the name of the call. Faults choose the first
names more often."""


class Blow(msgspec.Struct, omit_defaults=True):
    """A blow to a worker or to the store's clock, with its time and its duration or clock step."""

    at: float
    what: str
    worker: int = 0
    seconds: float = 0.0


class Fault(msgspec.Struct):
    """A fault in one call of a worker: its call number `number` of this name."""

    worker: int
    call: str
    number: int
    what: str


class Adversity(msgspec.Struct):
    """The faults of one simulation. `chance` seeds the rest: how long things take, which hints are lost."""

    chance: int
    workers: int = 2
    concurrency: int = 5
    flushes: int = 1
    slowness: float = 1.0
    deafness: float = 0.0
    always_replay: bool = False
    blows: list[Blow] = []
    faults: list[Fault] = []


def adversity_of(seed: int) -> Adversity:
    """Return the adversity of a seed. It does not depend on the workload."""
    chance = random.Random(f"adversity {seed}")
    adversity = Adversity(
        chance=seed,
        workers=chance.choice([1, 2, 2, 3, 3, 4]),
        concurrency=chance.choice([1, 2, 5, 20]),
        flushes=chance.choice([1, 1, 2]),
        slowness=chance.choice([0.0, 0.05, 1.0, 1.0, 10.0]),
        deafness=chance.choice([0.0, 0.2, 1.0]),
        always_replay=chance.random() < 0.15,
    )
    _add_blows(adversity, chance)
    return adversity


def _add_blows(adversity: Adversity, chance: random.Random) -> None:
    for _ in range(chance.randint(0, LOSSES_LIMIT)):
        worker = chance.randrange(adversity.workers)
        if chance.random() < 0.65:
            call = chance.choice(list(CALLS)[: chance.choice([2, 2, 3, len(CALLS)])])
            number = chance.randint(1, CALLS[call])
            adversity.faults.append(Fault(worker=worker, call=call, number=number, what=chance.choice(FAULTS)))
        else:
            what = chance.choice(["kill", "kill", "freeze", "freeze", "stop", "step"])
            seconds = {"freeze": chance.choice([5.0, 100.0, 400.0]), "step": chance.choice([90.0, -90.0, 1000.0])}
            adversity.blows.append(Blow(at=soon(chance), what=what, worker=worker, seconds=seconds.get(what, 0.0)))


def soon(chance: random.Random) -> float:
    """Return a start time: often zero or within 5 seconds, and always in the first half of the horizon."""
    return round(chance.choice([0.0, 0.0, chance.random() * 5, chance.random() * HORIZON_SECONDS / 2]), 3)
