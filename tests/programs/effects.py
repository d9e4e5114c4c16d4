"""Effects: the bodies that a program must have executed, their order, and the comparison with a ledger.

A tree defines the order: a sequence is ordered, concurrent parts are not. A part that may have been cut off is a
`Maybe`: none of it needs to have happened, but what happened is in order and not too often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Key = tuple[str, str]
"""The path of a run, and a location in it."""


@dataclass(frozen=True)
class Effect:
    """A body that is started `times` times; after crashes perhaps more often, perhaps only `least` times.

    `is_firm`: once it is done it is never started again. `undo_times`: how often its undo is started, if it has one.
    """

    run: str
    location: str
    times: int = 1
    least: int = 1
    is_firm: bool = True
    undo_times: int = 0

    @property
    def key(self) -> Key:
        return self.run, self.location

    @property
    def undone(self) -> Effect:
        """The effect of its undo."""
        return Effect(self.run, f"~undo/{self.location}", self.undo_times)


@dataclass(frozen=True)
class Seq:
    parts: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Par:
    parts: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Maybe:
    tree: Tree


Tree = Effect | Seq | Par | Maybe

NOTHING = Seq()


def effects_of(tree: Tree, *, is_sure: bool = True) -> Iterator[tuple[Effect, bool]]:
    """Yield all effects of a tree, each with True if it must happen."""
    match tree:
        case Effect():
            yield tree, is_sure
        case Maybe():
            yield from effects_of(tree.tree, is_sure=False)
        case Seq() | Par():
            for part in tree.parts:
                yield from effects_of(part, is_sure=is_sure)


def undoing(tree: Tree, run: str) -> Tree:
    """Return the effects of a rollback of one run, in reverse order."""
    match tree:
        case Effect():
            return tree.undone if tree.run == run and tree.undo_times else NOTHING
        case Seq():
            return Seq(tuple(undoing(part, run) for part in reversed(tree.parts)))
        case Par():
            return Par(tuple(undoing(part, run) for part in tree.parts))
        case Maybe():
            return unsure(undoing(tree.tree, run))


def unsure(tree: Tree) -> Tree:
    """Return the same effects, all optional, in any order."""
    return Par(tuple(Maybe(effect) for effect, _ in effects_of(tree)))


class Check:
    """Compares a ledger, the keys of all started bodies in order, with trees."""

    def __init__(self, ledger: Sequence[Key], *, crashes: int) -> None:
        self._crashes = crashes
        self._begun: dict[Key, list[int]] = {}
        for number, key in enumerate(ledger):
            self._begun.setdefault(key, []).append(number)

    def problems(self, trees: Sequence[Tree]) -> list[str]:
        """Return the problems of the ledger in words; empty if it fits."""
        known = {effect.key for tree in trees for effect, _ in effects_of(tree)}
        found = [f"{key} was begun, and should not have been" for key in self._begun if key not in known]
        return found + [problem for tree in trees for problem in self._surely(tree)]

    def _surely(self, tree: Tree) -> Iterator[str]:
        match tree:
            case Effect():
                least = tree.least if self._crashes else tree.times
                if not least <= self._count(tree) <= tree.times + self._crashes:
                    yield f"{tree.key} was begun {self._count(tree)} times instead of {tree.times}"
            case Maybe():
                yield from self._perhaps(tree.tree)[0]
            case Par():
                for part in tree.parts:
                    yield from self._surely(part)
            case Seq():
                for part in tree.parts:
                    yield from self._surely(part)
                yield from self._disorder(tree)

    def _perhaps(self, tree: Tree) -> tuple[list[str], bool, bool]:
        """Return the problems of an optional part, whether any of it was started, and whether all of it was."""
        if isinstance(tree, Effect):
            count = self._count(tree)
            too_often = [f"{tree.key} was begun {count} times, at most {tree.times} are right"]
            return too_often if count > tree.times + self._crashes else [], count > 0, count >= tree.least
        if isinstance(tree, Maybe):
            problems, is_begun, _ = self._perhaps(tree.tree)
            return problems, is_begun, True
        found: list[str] = list(self._disorder(tree, with_undo=False)) if isinstance(tree, Seq) else []
        any_begun, all_done = False, True
        for part in tree.parts:
            problems, is_begun, is_done = self._perhaps(part)
            found += problems
            if isinstance(tree, Seq) and is_begun and not all_done and not _is_undo(part):
                found.append(f"{_named(part)} was begun, though not all that comes before it")
            any_begun, all_done = any_begun or is_begun, all_done and is_done
        return found, any_begun, all_done

    def _disorder(self, sequence: Seq, *, with_undo: bool = True) -> Iterator[str]:
        last, by = -1, ""
        for part in sequence.parts:
            if not with_undo and _is_undo(part):
                continue
            for effect, _ in self._certain(part):
                if self._begun[effect.key][0] < last:
                    yield f"{effect.key} was begun before {by} was over"
            for effect, latest in self._certain(part):
                if latest > last:
                    last, by = latest, str(effect.key)

    def _certain(self, tree: Tree) -> Iterator[tuple[Effect, int]]:
        """Return the started bodies of a part that must happen, with their last start."""
        for effect, is_sure in effects_of(tree):
            begun = self._begun.get(effect.key)
            if is_sure and begun:
                yield effect, begun[-1 if effect.is_firm else 0]

    def _count(self, effect: Effect) -> int:
        return len(self._begun.get(effect.key, ()))


def _is_undo(tree: Tree) -> bool:
    """True if a tree contains an undo, which a run that was cut off earlier also does."""
    return all(effect.location.startswith("~undo/") for effect, _ in effects_of(tree))


def _named(tree: Tree) -> str:
    return ", ".join(str(effect.key) for effect, _ in effects_of(tree))


def undo_problems(ledger: Sequence[Key], undone_last_first: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Return where a rollback did not follow a run's history in reverse. `undone_last_first`: that history, by run."""
    begun: dict[str, dict[str, None]] = {}
    for run, location in ledger:
        if location.startswith("~undo/"):
            begun.setdefault(run, {})[location.removeprefix("~undo/")] = None
    for run in begun.keys() | undone_last_first.keys():
        want, got = list(undone_last_first.get(run, ())), list(begun.get(run, ()))
        if want != got:
            yield f"{run!r} undid {got}, and should have undone {want}"
