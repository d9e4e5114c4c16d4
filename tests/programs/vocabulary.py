"""The vocabulary as a language: a seed generates a program, a tree of plain JSON made of every operation.

The outcome of each program is determined (see `interpreter`): only timers race with timers, and all other races have a
single possible end. A program is `{"parts": [...]}`, a part for each generation of its run; the root also has an `end`
if it does not end by itself. Numbers make the names of operations unique. A third of the programs are sagas: every step
has its undo, and many runs fail in the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.programs.expectation import At, Undetermined
from tests.programs.interpreter import Interpreter, Node, Program

LEAVES = (
    *("step", "step", *["undo"] * 4, "flaky", "broken", "exhaust", "sleep", "sleep", "receive", "inbox", "batch"),
    *("late", "silence", "echo", "news", "version", "value", "dice", "raise", "rollback"),
)
BRANCHES = (
    *("seq", *["try"] * 3, "join", "join", "race", "first", "timers", "loop", "loop"),
    *("call", "start", "forget", "doomed", "map", "pair", "limit"),
)
KEYS = ("a", "b", "c", "d")
UNCAUGHT = 0.25
"""Probability that an operation that ends its sequence stays uncaught; the others are put into a `try`."""


@dataclass(frozen=True)
class Soil:
    """The context of an operation: how deep it may branch, whether it gets messages, and its loop iteration."""

    depth: int
    has_sender: bool
    is_root: bool
    loop: int = 0

    @property
    def below(self) -> Soil:
        return replace(self, depth=self.depth - 1)

    @property
    def child(self) -> Soil:
        return Soil(self.depth - 1, has_sender=False, is_root=False)


class Gardener:
    """Generates programs from a seed. Numbers start after `count`, so that concurrent programs share none."""

    def __init__(self, seed: int | str, *, count: int = 0) -> None:
        self._chance = random.Random(seed)
        self._count = count
        self._budget = self._chance.choice([6, 12, 18, 24, 30, 40])
        self._is_saga = self._chance.random() < 0.35

    def grow(self) -> Program:
        """Generate a whole program."""
        end = self._chance.choices([None, "cancel", "max_run", "max_suspend"], [80, 12, 4, 4])[0]
        while True:
            soil = Soil(self._chance.choice([1, 2, 2, 3, 3, 4]), has_sender=True, is_root=True)
            program = self._program(soil, hangs=end is not None, share=0.35) | ({"end": end} if end else {})
            try:
                Interpreter().root(program)
            except Undetermined:
                continue
            return program

    def _program(self, soil: Soil, *, hangs: bool = False, share: float = 0.15) -> Program:
        count = 1 if self._chance.random() > share else self._chance.choice([2, 2, 3])
        parts = [self._sequence(soil, 3) for _ in range(count)]
        if hangs:
            parts[-1][1].append(["hang", self._number()])
        elif self._is_saga and self._chance.random() < 0.4:
            parts[-1][1].append(self._leaf(soil, self._chance.choice(["broken", "raise", "rollback"])))
        return {"parts": parts}

    def _sequence(self, soil: Soil, longest: int) -> Node:
        return ["seq", [self._node(soil) for _ in range(self._chance.randint(1, longest))]]

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _node(self, soil: Soil) -> Node:
        """Generate an operation with a determined outcome."""
        for _ in range(6):
            node = self._draw(soil)
            try:
                outcome = Interpreter().evaluate(node, At("", iteration=soil.loop))
            except Undetermined:
                continue
            if outcome.error is not None and self._chance.random() > UNCAUGHT:
                return ["try", node, self._leaf(soil, "step"), int(self._chance.random() < 0.7)]
            return node
        return self._leaf(soil, "step")

    def _draw(self, soil: Soil) -> Node:
        self._budget -= 1
        if soil.loop and self._chance.random() < 0.15:
            return self._grow_when(soil)
        if soil.depth <= 0 or self._budget <= 0 or self._chance.random() < 0.35:
            return self._leaf(soil, self._chance.choice(LEAVES))
        kind = self._chance.choice(BRANCHES)
        grow: Callable[[Soil], Node] = getattr(self, f"_grow_{kind}")
        return grow(soil)

    # Leaves

    def _leaf(self, soil: Soil, kind: str) -> Node:
        number, chance = self._number(), self._chance
        match kind:
            case "step" if not self._is_saga:
                return [kind, number, 0, int(chance.random() < 0.2)]
            case "step" | "undo":
                return ["step", number, chance.choice([1, 1, 2]), int(chance.random() < 0.2)]
            case "flaky":
                return [kind, number, chance.choice([1, 2]), chance.choice([0, 0.25, 16]), chance.choice([0, 1])]
            case "sleep":
                return [kind, chance.choice([0, 0.5, 5, 60, 3600])]
            case "receive":
                return [kind, number, chance.choice(["self", "either", *(["sent"] * 3 if soil.has_sender else [])])]
            case "inbox":
                return [kind, number, chance.randint(1, 4)]
            case "batch":
                return [kind, number, chance.randint(0, 5), chance.randint(1, 3)]
            case "late" | "silence":
                return [kind, number, chance.choice([0, 0.5, 30])]
            case "news" if not soil.is_root:
                return ["echo", number]
            case _:
                return [kind, number]

    def _endless(self, soil: Soil) -> Node:
        """A branch that never ends by itself."""
        number = self._number()
        match self._chance.choice(["far", "hang", "work", "work", "child", "map"]):
            case "far":
                return ["far", number]
            case "hang":
                return ["hang", number]
            case "child":
                return ["call", number, self._program(soil.child, hangs=True)]
            case "map":
                programs = [self._program(soil.child, hangs=place == 1) for place in range(3)]
                return ["map", number, programs, self._chance.choice([0, 1, 2])]
            case _:
                return ["seq", [*self._sequence(soil, 2)[1], ["hang", number]]]

    # Branches

    def _grow_seq(self, soil: Soil) -> Node:
        return self._sequence(soil.below, 3)

    def _grow_try(self, soil: Soil) -> Node:
        failing = self._leaf(soil, self._chance.choice(["broken", "exhaust", "late", "raise", "rollback", "step"]))
        body = [*self._sequence(soil.below, 2)[1], failing]
        return ["try", ["seq", body], self._node(soil.below), int(self._chance.random() < 0.7)]

    def _grow_join(self, soil: Soil) -> Node:
        is_fast = int(self._chance.random() < 0.4)
        branches = {key: self._branch(soil) for key in self._keys(1)}
        if is_fast and len(branches) > 1 and self._chance.random() < 0.8:
            branches = {key: self._endless(soil.below) for key in branches}
            failing = self._leaf(soil, self._chance.choice(["broken", "exhaust", "late", "raise", "rollback"]))
            doomed = ["seq", [*self._sequence(soil.below, 2)[1], failing]]
            branches[self._chance.choice(list(branches))] = doomed
        return ["join", self._number(), branches, is_fast]

    def _branch(self, soil: Soil) -> Node:
        """A branch that ends; it fails more often than an operation in a sequence."""
        branch = self._sequence(soil.below, 2)
        if self._chance.random() < 0.15:
            branch[1].append(self._leaf(soil, self._chance.choice(["broken", "raise", "rollback"])))
        return branch

    def _grow_race(self, soil: Soil) -> Node:
        keys = self._keys(1)
        branches: dict[str, Node] = {}
        winner = self._chance.choice([*keys, None])
        for key in keys:
            failing = self._leaf(soil, self._chance.choice(["broken", "raise", "late"]))
            loser = ["seq", [*self._sequence(soil.below, 1)[1], failing]]
            is_endless = winner is not None and self._chance.random() < 0.6
            branches[key] = self._endless(soil.below) if is_endless else loser
            if key == winner:
                branches[key] = self._sequence(soil.below, 2)
        return ["race", self._number(), branches]

    def _grow_first(self, soil: Soil) -> Node:
        keys = self._keys(1)
        branches = {key: self._endless(soil.below) for key in keys}
        branches[self._chance.choice(keys)] = self._branch(soil)
        return ["first", self._number(), branches]

    def _grow_timers(self, soil: Soil) -> Node:
        keys = self._keys(2)
        lengths = self._chance.sample([0.5, 1, 2, 30, 90, 4000], len(keys))
        timers = {key: [length, int(self._chance.random() < 0.6)] for key, length in zip(keys, lengths, strict=True)}
        return ["timers", self._number(), self._chance.choice(["join", "race", "first"]), timers]

    def _keys(self, fewest: int) -> list[str]:
        return self._chance.sample(KEYS, self._chance.randint(fewest, 3))

    def _grow_loop(self, soil: Soil) -> Node:
        count = self._chance.choice([1, 3, 5, 7, 9]) if soil.loop == 0 else self._chance.choice([2, 3])
        keep, every = self._chance.randint(1, 3), self._chance.randint(1, 3)
        body = self._sequence(replace(soil.below, loop=count), 2)
        return ["loop", self._number(), count, keep, every, body]

    def _grow_when(self, soil: Soil) -> Node:
        iteration = self._chance.randint(1, soil.loop)
        special = self._leaf(soil, self._chance.choice(["raise", "rollback", "broken", "late", "undo", "step"]))
        return ["when", iteration, special, self._node(soil.below)]

    # Children

    def _grow_call(self, soil: Soil) -> Node:
        return ["call", self._number(), self._program(soil.child)]

    def _grow_start(self, soil: Soil) -> Node:
        program = self._program(replace(soil.child, has_sender=True))
        return ["start", self._number(), program, self._node(soil.below), self._on_close()]

    def _grow_forget(self, soil: Soil) -> Node:
        on_close = self._on_close()
        hangs = on_close == "cancel" and self._chance.random() < 0.5
        return ["forget", self._number(), self._program(soil.child, hangs=hangs), on_close]

    def _on_close(self) -> str:
        return self._chance.choice(["cancel", "abandon"])

    def _grow_doomed(self, soil: Soil) -> Node:
        return ["doomed", self._number(), self._program(soil.child, hangs=True)]

    def _grow_map(self, soil: Soil) -> Node:
        programs = [self._program(soil.child) for _ in range(self._chance.randint(1, 5))]
        return ["map", self._number(), programs, self._chance.choice([0, 0, 1, 2])]

    def _grow_pair(self, soil: Soil) -> Node:
        thrower, catcher = self._program(soil.child), self._program(soil.child)
        thrower["parts"][-1][1].append(["throw"])
        catcher["parts"][0][1].insert(0, ["catch"])
        return ["pair", self._number(), thrower, catcher]

    def _grow_limit(self, soil: Soil) -> Node:
        limit = self._chance.choice(["max_run", "max_suspend"])
        return ["limit", self._number(), self._program(soil.child, hangs=True), limit]
