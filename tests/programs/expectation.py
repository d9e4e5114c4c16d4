"""The expectation for a program: how it ends, its effects until then, and the text of its failure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from tests.programs.effects import NOTHING, Effect, Maybe, Par, Seq, Tree, undoing, unsure

ANY: Any = object()
"""A value that is not determined."""

ENDS = frozenset({"succeeded", "failed", "cancelled"})


class Undetermined(Exception):
    """The outcome of this program depends on real durations."""


def digest(*values: Any) -> int:
    """A number that stands for any number of values."""
    return crc32(json.dumps(values).encode())


@dataclass(frozen=True)
class Failure:
    """An error: its class name, its text, and for a join the partial results."""

    type: str
    text: str
    results: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.text}"

    @property
    def caught(self) -> list[Any]:
        """The value that its handler produces."""
        return ["caught", str(self), self.results]


@dataclass(frozen=True)
class RunEnd:
    """The end of a run; `result` and `error` may be `ANY`. One that `is_sure` exists."""

    states: frozenset[str]
    result: Any = ANY
    error: Any = ANY
    is_sure: bool = True

    def cut(self) -> RunEnd:
        """The same run, cancelled at any time or never started. One that would be cancelled anyway still is."""
        return RunEnd(self.states if self.states == {"cancelled"} else ENDS, is_sure=False)


@dataclass(frozen=True)
class ExpectedOutcome:
    """The outcome of an operation: a value, an error, or no end; and its effects until then.

    `loose` continues beside everything that comes later. `values` are the published ones, by run and name.
    """

    value: Any = None
    error: Failure | None = None
    is_never: bool = False
    seconds: float = 0
    tree: Tree = NOTHING
    loose: tuple[Tree, ...] = ()
    runs: dict[str, RunEnd] = field(default_factory=dict)
    values: dict[tuple[str, str], Any] = field(default_factory=dict)

    @property
    def is_fine(self) -> bool:
        return self.error is None and not self.is_never

    @property
    def is_rollback(self) -> bool:
        return self.error is not None and self.error.type == "Rollback"

    def then(self, later: ExpectedOutcome) -> ExpectedOutcome:
        """Combine two outcomes in sequence; the later one decides the end."""
        return replace(
            later,
            seconds=self.seconds + later.seconds,
            tree=Seq((self.tree, later.tree)),
            loose=self.loose + later.loose,
            runs=self.runs | later.runs,
            values=self.values | later.values,
        )

    def cut(self) -> ExpectedOutcome:
        """The same outcome, cut off somewhere. Its children may be cancelled at any point, and then roll back."""
        done = Par((self.tree, *self.loose))
        undone = tuple(unsure(undoing(done, path)) for path in self.runs)
        return replace(
            self,
            tree=Par((Maybe(self.tree), *undone)),
            loose=tuple(unsure(tree) for tree in self.loose),
            runs={path: end.cut() for path, end in self.runs.items()},
            values=dict.fromkeys(self.values, ANY),
        )

    def left_behind(self) -> ExpectedOutcome:
        """Let its effects continue beside everything that comes later."""
        return replace(self, tree=NOTHING, loose=(self.tree, *self.loose), seconds=0)


@dataclass(frozen=True)
class At:
    """A place in a program: the path of the run, the scope in it, the iteration of the surrounding loop."""

    run: str
    scope: str = ""
    iteration: int = 0

    def effect(self, name: str, **about: Any) -> Effect:
        return Effect(self.run, self.scope + name, **about)

    def child(self, name: str) -> str:
        return f"{self.run} > {self.scope}{name}"


def beside(parts: Iterable[ExpectedOutcome], end: ExpectedOutcome) -> ExpectedOutcome:
    """Concurrent outcomes, and their combined end."""
    every = list(parts)
    return replace(
        end,
        tree=Par(tuple(part.tree for part in every)),
        loose=tuple(tree for part in every for tree in part.loose),
        runs={path: run for part in every for path, run in part.runs.items()},
        values={name: value for part in every for name, value in part.values.items()},
    )


def decided(parts: Mapping[str, ExpectedOutcome], key: str) -> ExpectedOutcome:
    """One branch decides; the others are cut off."""
    return beside([part if each == key else part.cut() for each, part in parts.items()], parts[key])


def step_failed(effect: Effect, why: str) -> Failure:
    return Failure("StepFailed", f"step {effect.location!r} failed after N attempts: {why}")


def child_failed(error: Failure) -> Failure:
    how = "was cancelled" if error.type == "Cancelled" else "failed"
    cause = error.text if error.type == "ChildFailed" else str(error)
    return Failure("ChildFailed", f"{cause} (child run ID {how})")


def join_failed(where: str, results: dict[str, Any], errors: Mapping[str, Failure]) -> Failure:
    total = len(results) + len(errors)
    return Failure("JoinFailed", f"{len(errors)} of {total} branches of {where!r} failed: {_listed(errors)}", results)


def race_failed(where: str, errors: Mapping[str, Failure]) -> Failure:
    return Failure("RaceFailed", f"all {len(errors)} branches of {where!r} failed: {_listed(errors)}")


def _listed(errors: Mapping[str, Failure]) -> str:
    shown = [f"{key}: {error}" for key, error in list(errors.items())[:5]]
    return "; ".join(shown) + (f"; and {len(errors) - 5} more" if len(errors) > 5 else "")
