"""The vocabulary of flows: a seed generates a flow program that uses every durable call. See `flow_text`.

The outcome of each program is determined: all races have a single possible end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.programs.flow_text import FlowNode, FlowProgram

LEAVES = (
    *("task", "task", "same", "broken", "friend", "sleep", "sleep", "receive", "receive", "batch", "late", "news"),
    *("echo", "forget", "doomed", "value", "compute", "map", "map", "partial"),
)
FROM_OUTSIDE = frozenset({"receive", "batch", "news"})
"""Leaves that a producer has to send something for. Only the root of a family gets that, once."""
BRANCHES = ("early", "beside", "join", "race", "caught", "loop", "inner", "inner")
FRAGILE_SHARE = 0.4
"""Share of programs with tasks that fail until a person repairs them and recovers the flow.

A run that fails loses its unread messages. So such a program gets none, or its only fragile task is the last node.
"""


@dataclass(frozen=True)
class FlowSoil:
    """The place of a node: how deep it may branch, which leaves it may have, and whether main itself awaits it.

    Only there a task may be fragile: elsewhere, a recovery would not come back to before its failure.
    """

    depth: int
    leaves: Sequence[str]
    is_main: bool = True

    @property
    def branch(self) -> FlowSoil:
        return replace(self, depth=self.depth - 1, is_main=False)

    @property
    def alone(self) -> FlowSoil:
        """The same place, without anything from outside."""
        return replace(self, leaves=[kind for kind in self.leaves if kind not in FROM_OUTSIDE])


class FlowGardener:
    """Generates flow programs from a seed. Numbers start after `count`, so that concurrent programs share none."""

    def __init__(self, seed: str, *, count: int) -> None:
        self._chance = random.Random(seed)
        self._count = count
        self._budget = self._chance.choice([4, 8, 12, 18, 24])
        self._is_fragile = self._chance.random() < FRAGILE_SHARE

    def grow(self) -> FlowProgram:
        """Generate a whole program."""
        soil = FlowSoil(self._chance.choice([0, 1, 2, 2, 3]), LEAVES)
        is_fragile_at_last = self._is_fragile and self._chance.random() < 0.5
        if is_fragile_at_last:
            self._is_fragile = False
        program = self._program(soil.alone if self._is_fragile else soil, share=0.3)
        if is_fragile_at_last:
            program["parts"][-1].append(self._fragile())
        return program

    def _program(self, soil: FlowSoil, share: float) -> FlowProgram:
        count = 1 if self._chance.random() > share else self._chance.choice([2, 2, 3])
        parts = [self._sequence(soil, 4) for _ in range(count)]
        if self._is_fragile and soil.is_main and self._chance.random() < 0.7:
            part = self._chance.choice(parts)
            part.insert(self._chance.randint(0, len(part)), self._fragile())
        return {"parts": parts}

    def _fragile(self) -> FlowNode:
        return ["fragile", self._number(), self._chance.choice(["plain", "finally"])]

    def _sequence(self, soil: FlowSoil, longest: int) -> list[FlowNode]:
        return [self._node(soil) for _ in range(self._chance.randint(1, longest))]

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _node(self, soil: FlowSoil) -> FlowNode:
        self._budget -= 1
        if soil.depth <= 0 or self._budget <= 0 or self._chance.random() < 0.4:
            return self._leaf(self._chance.choice(soil.leaves))
        kind = self._chance.choice(BRANCHES)
        grow: Callable[[FlowSoil], FlowNode] = getattr(self, f"_grow_{kind}")
        return grow(soil)

    def _leaf(self, kind: str) -> FlowNode:
        number, chance = self._number(), self._chance
        match kind:
            case "task":
                return ["task", number, chance.choice([0, 0, 0, 5])]
            case "sleep":
                return ["sleep", chance.choice([0, 0.5, 3, 60, 3600])]
            case "receive":
                return ["receive", number, chance.choice(["plain", "either", "timeout"])]
            case "batch":
                return ["batch", number, chance.randint(1, 4)]
            case "late":
                return ["late", number, chance.choice([0.5, 5]), chance.choice(["receive", "wait_event"])]
            case "doomed":
                return ["doomed", number, chance.choice(["race", "cancel"])]
            case "compute":
                return ["compute", chance.choice([10, 400])]
            case "map":
                return ["map", number, chance.choice([0, 1, 3, 5]), chance.choice([0, 1, 2])]
            case "partial":
                return ["partial", number, chance.randint(2, 4)]
            case _:
                return [kind, number]

    # Branches

    def _grow_early(self, soil: FlowSoil) -> FlowNode:
        return ["early", self._number(), self._sequence(soil.branch, 2)]

    def _grow_beside(self, soil: FlowSoil) -> FlowNode:
        return ["beside", self._number(), self._sequence(soil.branch, 2), self._sequence(soil.branch, 2)]

    def _grow_join(self, soil: FlowSoil) -> FlowNode:
        keys = "abc"[: self._chance.randint(1, 3)]
        return ["join", {key: self._sequence(soil.branch, 2) for key in keys}]

    def _grow_race(self, soil: FlowSoil) -> FlowNode:
        what = self._chance.choice(["race", "first_settled"])
        return ["race", self._number(), self._sequence(soil.branch, 2), what]

    def _grow_caught(self, soil: FlowSoil) -> FlowNode:
        return ["caught", self._number(), self._sequence(soil.branch, 2)]

    def _grow_loop(self, soil: FlowSoil) -> FlowNode:
        """A loop; the long ones exceed the number of snapshots that a flow keeps."""
        if self._chance.random() < 0.3:
            return ["loop", self._chance.choice([12, 25]), [["sleep", 1]]]
        inside = replace(soil.branch.alone, depth=0)
        return ["loop", self._chance.choice([2, 3]), self._sequence(inside, 2)]

    def _grow_inner(self, soil: FlowSoil) -> FlowNode:
        fails = self._chance.random() < 0.3
        inside = replace(soil.alone, depth=soil.depth - 1, is_main=soil.is_main and not fails)
        return ["inner", self._number(), self._program(inside, share=0.2), int(fails)]
