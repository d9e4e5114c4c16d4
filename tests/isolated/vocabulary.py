"""Random programs of the whole vocabulary on isolated runs, compared with the prediction of the interpreter."""

from __future__ import annotations

import json
import random
from typing import Any

from holdfast import Holdfast, isolated
from holdfast.core.clock import SECOND
from tests.crash.explore import Mismatch, program_of
from tests.isolated.faulty_namespace import When
from tests.isolated.world import World
from tests.programs.comparison import Played, problems
from tests.programs.interpreter import LIMIT_SECONDS, Interpreter, Program, mail_of, news_of
from tests.programs.ledger import EffectLedger
from tests.programs.performer import build


async def perform(program: Program, *, crashes: dict[int, When] | None = None, strict: bool = True) -> World:
    """Play a program to its end, and raise `Mismatch` if it does not end as predicted."""
    hf, ledger = Holdfast("memory://"), EffectLedger()
    session_registry(hf, ledger, strict=strict)
    world = World(hf, crashes=crashes)
    limits: dict[str, Any] = {program["end"]: LIMIT_SECONDS} if str(program.get("end")).startswith("max") else {}
    world.start("root", "program", {"program": program}, **limits)
    for mail, count in mail_of(program).items():
        for each in range(count):
            await world.mail(
                "root", isolated.message(f"{mail}-{each:03}", f"mail{mail}", [mail, each + 1], at=world.now)
            )
    for news, count in news_of(program).items():
        for each in range(count):
            await world.mail("root", isolated.event(f"{news}-{each:03}", f"news{news}", [news, each + 1], at=world.now))
    if program.get("end") == "cancel":
        await _come_to_hang(world, program["parts"][-1][1][-1][1])
        await world.mail("root", isolated.cancel("enough", "enough", at=world.now))
    await world.play()
    details, histories = await world.details()
    expected = Interpreter().root(program)
    played = Played.of(details, histories, ledger)
    found = problems(expected, played, crashes=world.died)
    root = played.runs["root"]
    took = ((root.finished_at or 0) - root.created_at) / SECOND
    if not world.died and took != expected.seconds:
        found.append(f"it took {took} s, not {expected.seconds} s")
    if found:
        raise Mismatch("\n".join(["", *found[:12], json.dumps(program)]))
    return world


def session_registry(hf: Holdfast, ledger: EffectLedger, *, strict: bool) -> None:
    """Register the workflow that executes programs."""
    build(hf, ledger, strict=strict)  # type: ignore[arg-type]  # a Holdfast has the decorators of a registry


async def _come_to_hang(world: World, number: int) -> None:
    while True:
        await world.settle()
        found = await world.contents("root")
        if any(wait.location.endswith(f":hang{number}") for wait in found.waits):
            return
        if not world.skip():
            raise Mismatch(f"it does not come to where it should wait: {found.run}")


async def explore(seed: int) -> int:
    """Play the program of a seed undisturbed, and with a few crashes. Return the number of calls."""
    program, chance = program_of(seed), random.Random(seed)
    strict = seed % 4 != 3
    whens: tuple[When, ...] = ("before", "after")
    try:
        calls = len((await perform(program, strict=strict)).counter.names)
        for _ in range(2):
            numbers = chance.sample(range(1, calls + 1), min(calls, chance.randint(1, 4)))
            crashes = {number: chance.choice(whens) for number in numbers}
            await perform(program, crashes=crashes, strict=strict)
    except Exception as error:
        raise Mismatch(f"seed {seed}: {type(error).__name__}: {error}") from error
    return calls
