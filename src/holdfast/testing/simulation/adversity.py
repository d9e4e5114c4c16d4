"""Adversity: what goes wrong in one simulation, and how many workers there are, as plain data. A seed makes one."""

from __future__ import annotations

import random

import msgspec

from holdfast.testing.simulation.network import FAULTS

LOSSES_LIMIT = 5
"""How often at most a worker is lost, or may be taken for lost."""

HORIZON_SECONDS = 600.0
"""After so many seconds nothing new goes wrong."""

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
"""By the name of a call, among how many of the first calls of a process a fault chooses one. Names that stand first are
chosen more often."""


class Blow(msgspec.Struct, omit_defaults=True):
    """Something that befalls a worker, or the store's clock: at some time, for so long."""

    at: float
    what: str
    worker: int = 0
    seconds: float = 0.0


class Fault(msgspec.Struct):
    """What happens to one call of a worker: to its call number `number` of this name."""

    worker: int
    call: str
    number: int
    what: str


class Adversity(msgspec.Struct):
    """What goes wrong. `chance` is the seed of what is left to it: how long things take, which hints get lost."""

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
    """What goes wrong under a seed, whatever is run."""
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
    """When something begins: mostly at once, and before half of the time is over."""
    return round(chance.choice([0.0, 0.0, chance.random() * 5, chance.random() * HORIZON_SECONDS / 2]), 3)
