"""An interpreter of programs: it predicts their outcome in plain Python, in one thread, without time.

It knows only the names and texts of holdfast's errors. It never asks what happened first in reality: a program that
depends on that is `Undetermined`, and is not generated.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.programs.effects import Tree, effects_of, undoing
from tests.programs.expectation import (
    ENDS,
    At,
    ExpectedOutcome,
    Failure,
    RunEnd,
    Undetermined,
    beside,
    child_failed,
    decided,
    digest,
    join_failed,
    race_failed,
    step_failed,
)

Node = list[Any]
"""The name of an operation and its arguments."""

Program = dict[str, Any]
"""Its `parts`, one for each generation of the run."""

LIMIT_SECONDS = 2 * 86_400
"""The duration after which a run ends by its limit, `max_run` or `max_suspend`. Nothing else takes that long."""

NEWS_SECONDS = 6 * 86_400
"""Time for which unreceived events are surely kept."""

FAR_SECONDS = 4_000 * 86_400
"""A timer that always loses."""


class Interpreter:
    """Predicts the outcome of one program."""

    def __init__(self) -> None:
        self._received: Counter[tuple[str, int]] = Counter()

    def evaluate(self, node: Node, at: At) -> ExpectedOutcome:
        kind, *parts = node
        work: Callable[..., ExpectedOutcome] = getattr(self, f"_{kind}")
        outcome = work(at, *parts)
        if outcome.seconds > FAR_SECONDS / 2 or len(str(outcome.error)) > 3_000:
            raise Undetermined(kind)
        return outcome

    # Runs

    def root(self, program: Program, path: str = "root") -> ExpectedOutcome:
        """Return the outcome of a started program, and who ends it if it does not end by itself."""
        match program.get("end"):
            case "cancel":
                outcome = self._ended_from_outside(path, *self.live(program, path), "enough", 0)
            case "max_run" | "max_suspend" as limit:
                outcome = self._limited(path, program, limit)
            case _:
                outcome = self.run(program, path)
        if outcome.is_never:
            raise Undetermined("nobody ends it")
        if outcome.seconds > NEWS_SECONDS and news_of(program):
            raise Undetermined("whether events are kept until then")
        return outcome

    def run(self, program: Program, path: str) -> ExpectedOutcome:
        """A run from its start to its end, with a rollback if it fails."""
        outcome, last = self.live(program, path)
        if outcome.is_never:
            return outcome
        if outcome.error is None:
            end = RunEnd(frozenset({"succeeded"}), outcome.value, None)
        else:
            end = RunEnd(frozenset({"failed"}), None, str(outcome.error))
            outcome = outcome.then(replace(outcome, seconds=0, tree=undoing(last, path), loose=()))
        return replace(outcome, runs=outcome.runs | {path: end})

    def live(self, program: Program, path: str) -> tuple[ExpectedOutcome, Tree]:
        """The generations of a run in sequence, and the effects of the last one: only those can be undone."""
        before, total = ExpectedOutcome(), 0
        for number, part in enumerate(program["parts"]):
            outcome = self.evaluate(part, At(path))
            total = digest(total, outcome.value)
            if not outcome.is_fine or number == len(program["parts"]) - 1:
                return before.then(replace(outcome, value=[total, outcome.value])), outcome.tree
            before = before.then(outcome)
        raise AssertionError("a program has at least one part")

    def _ended_from_outside(
        self, path: str, outcome: ExpectedOutcome, last: Tree, reason: str, seconds: float
    ) -> ExpectedOutcome:
        """A run that is cancelled once it only waits."""
        if not outcome.is_never:
            raise Undetermined("it ends by itself")
        error = Failure("Cancelled", reason)
        undo = ExpectedOutcome(error=error, seconds=seconds, tree=undoing(last, path))
        end = RunEnd(frozenset({"cancelled"}), None, str(error))
        ended = outcome.then(undo)
        return replace(ended, runs=ended.runs | {path: end})

    def _limited(self, path: str, program: Program, limit: str) -> ExpectedOutcome:
        outcome, last = self.live(program, path)
        if outcome.seconds >= LIMIT_SECONDS / 2:
            raise Undetermined("it may have come to its limit before")
        what = (
            "it ran longer than its max_run" if limit == "max_run" else "it was suspended longer than its max_suspend"
        )
        seconds = LIMIT_SECONDS - (outcome.seconds if limit == "max_run" else 0)
        return self._ended_from_outside(path, outcome, last, f"{what} of {LIMIT_SECONDS:g} s", seconds)

    def _dropped(self, path: str, outcome: ExpectedOutcome, states: Iterable[str] = ("cancelled",)) -> ExpectedOutcome:
        """A run that is cancelled at any point."""
        end = RunEnd(frozenset(states))
        cut = replace(outcome, runs=outcome.runs | {path: end}).cut()
        return replace(cut, runs=cut.runs | {path: end}, seconds=0)

    # Leaves

    def _step(self, at: At, number: int, undo: int, is_ephemeral: int) -> ExpectedOutcome:
        effect = at.effect(f"step{number}", undo_times=undo, is_firm=not is_ephemeral)
        return ExpectedOutcome(value=[number, at.iteration], tree=effect)

    def _flaky(self, at: At, number: int, fails: int, initial: float, undo: int) -> ExpectedOutcome:
        seconds = sum(initial * 2**attempt for attempt in range(fails))
        effect = at.effect(f"flaky{number}", times=1 + fails, undo_times=undo)
        return ExpectedOutcome(value=[number, at.iteration], seconds=seconds, tree=effect)

    def _broken(self, at: At, number: int) -> ExpectedOutcome:
        effect = at.effect(f"broken{number}")
        return ExpectedOutcome(error=step_failed(effect, f"LookupError: no {number}"), tree=effect)

    def _exhaust(self, at: At, number: int) -> ExpectedOutcome:
        effect = at.effect(f"exhaust{number}", times=3, least=0)
        return ExpectedOutcome(error=step_failed(effect, "used up"), seconds=0.75, tree=effect)

    def _sleep(self, at: At, seconds: float) -> ExpectedOutcome:
        return ExpectedOutcome(value="slept", seconds=seconds)

    def _receive(self, at: At, number: int, how: str) -> ExpectedOutcome:
        if how == "self":
            return ExpectedOutcome(value=[number, "self"])
        if how == "either":
            return ExpectedOutcome(value=[f"right{number}", number])
        self._received[at.run, number] += 1
        return ExpectedOutcome(value=[number, self._received[at.run, number]])

    def _inbox(self, at: At, number: int, count: int) -> ExpectedOutcome:
        return ExpectedOutcome(value=[[number, each] for each in range(count)])

    def _batch(self, at: At, number: int, count: int, size: int) -> ExpectedOutcome:
        return ExpectedOutcome(value=[[number, each] for each in range(count)], seconds=0.5)

    def _late(self, at: At, number: int, seconds: float) -> ExpectedOutcome:
        where = f"{at.scope}receive:late{number}"
        text = f"no message late{number} came in time (waited at {where!r})"
        return ExpectedOutcome(error=Failure("WaitTimeout", text), seconds=seconds)

    def _silence(self, at: At, number: int, seconds: float) -> ExpectedOutcome:
        where = f"{at.scope}event:silence{number}"
        text = f"no event silence{number} came in time (waited at {where!r})"
        return ExpectedOutcome(error=Failure("WaitTimeout", text), seconds=seconds)

    def _echo(self, at: At, number: int) -> ExpectedOutcome:
        return ExpectedOutcome(value=[number, at.iteration])

    def _news(self, at: At, number: int) -> ExpectedOutcome:
        self._received[at.run, number] += 1
        return ExpectedOutcome(value=[number, self._received[at.run, number]])

    def _version(self, at: At, number: int) -> ExpectedOutcome:
        return ExpectedOutcome(value=[number, number + 1], seconds=number % 2)

    def _value(self, at: At, number: int) -> ExpectedOutcome:
        return ExpectedOutcome(value="set", values={(at.run, f"value{number}"): at.iteration})

    def _dice(self, at: At, number: int) -> ExpectedOutcome:
        return ExpectedOutcome(value="the same")

    def _raise(self, at: At, number: int) -> ExpectedOutcome:
        return ExpectedOutcome(error=Failure("Boom", f"boom {number}"))

    def _rollback(self, at: At, number: int) -> ExpectedOutcome:
        return ExpectedOutcome(error=Failure("Rollback", f"back {number}"))

    def _hang(self, at: At, number: int) -> ExpectedOutcome:
        return ExpectedOutcome(is_never=True)

    def _far(self, at: At, number: int) -> ExpectedOutcome:
        return ExpectedOutcome(is_never=True)

    # Sequences

    def _seq(self, at: At, nodes: list[Node]) -> ExpectedOutcome:
        total, values = ExpectedOutcome(), []
        for node in nodes:
            total = total.then(self.evaluate(node, at))
            if not total.is_fine:
                return total
            values.append(total.value)
        return replace(total, value=values)

    def _try(self, at: At, node: Node, handler: Node, catches_all: int) -> ExpectedOutcome:
        outcome = self.evaluate(node, at)
        if outcome.error is None or (outcome.is_rollback and not catches_all):
            return outcome
        caught = outcome.error.caught
        handled = replace(outcome, error=None).then(self.evaluate(handler, at))
        return replace(handled, value=[caught, handled.value])

    def _loop(self, at: At, number: int, count: int, keep: int, every: int, body: Node) -> ExpectedOutcome:  # noqa: PLR0917 - parts of a node
        total, acc = ExpectedOutcome(), 0
        undos: list[frozenset[str]] = []
        for iteration in range(1, count + 1):
            _check_undo(undos, _first_kept(iteration, keep, every))
            inside = At(at.run, f"{at.scope}loop{number}/~{iteration}/", iteration)
            outcome = self.evaluate(body, inside)
            undos.append(_undo_names(outcome.tree, inside))
            total = total.then(outcome)
            if not total.is_fine:
                return total
            acc = digest(acc, total.value)
        _check_undo(undos, _first_kept(count, keep, every))
        return replace(total, value=[count, acc])

    def _when(self, at: At, iteration: int, node: Node, other: Node) -> ExpectedOutcome:
        return self.evaluate(node if at.iteration == iteration else other, at)

    # Concurrency

    def _join(self, at: At, number: int, branches: dict[str, Node], is_fast: int) -> ExpectedOutcome:
        parts = self._branches(at, f"join{number}", branches)
        errors = {key: part.error for key, part in parts.items() if part.error is not None}
        backwards = [key for key, part in parts.items() if part.is_rollback]
        nevers = [key for key, part in parts.items() if part.is_never]
        if backwards:
            if len(backwards) > 1 or (is_fast and len(errors) > 1):
                raise Undetermined("which of them is first")
            return self._decided(at, branches, parts, backwards[0])
        if is_fast and errors:
            if len(errors) + len(nevers) < len(parts) or len(errors) > 1:
                raise Undetermined("who has ended by then")
            (key,) = errors
            failed = join_failed(f"{at.scope}join{number}", {}, errors)
            return replace(self._decided(at, branches, parts, key), error=failed)
        if nevers:
            return beside(parts.values(), ExpectedOutcome(is_never=True))
        seconds = max(part.seconds for part in parts.values())
        results = {key: part.value for key, part in parts.items() if part.error is None}
        if errors:
            error = join_failed(f"{at.scope}join{number}", results, errors)
            return beside(parts.values(), ExpectedOutcome(error=error, seconds=seconds))
        return beside(parts.values(), ExpectedOutcome(value=results, seconds=seconds))

    def _race(self, at: At, number: int, branches: dict[str, Node]) -> ExpectedOutcome:
        parts = self._branches(at, f"race{number}", branches)
        winners = [key for key, part in parts.items() if part.is_fine]
        nevers = [key for key, part in parts.items() if part.is_never]
        backwards = [key for key, part in parts.items() if part.is_rollback]
        if backwards and len(nevers) + 1 == len(parts):
            return self._decided(at, branches, parts, backwards[0])
        if backwards or len(winners) > 1 or (nevers and not winners):
            raise Undetermined("who wins")
        if winners:
            won = self._decided(at, branches, parts, winners[0])
            return replace(won, value=[winners[0], won.value])
        errors = {key: part.error for key, part in parts.items() if part.error is not None}
        error = race_failed(f"{at.scope}race{number}", errors)
        seconds = max(part.seconds for part in parts.values())
        return beside(parts.values(), ExpectedOutcome(error=error, seconds=seconds))

    def _first(self, at: At, number: int, branches: dict[str, Node]) -> ExpectedOutcome:
        parts = self._branches(at, f"first{number}", branches)
        ending = [key for key, part in parts.items() if not part.is_never]
        if len(ending) != 1:
            raise Undetermined("who ends first")
        ended = self._decided(at, branches, parts, ending[0])
        return replace(ended, value=[ending[0], ended.value])

    def _timers(self, at: At, number: int, how: str, timers: dict[str, list[Any]]) -> ExpectedOutcome:
        """Branches that only sleep, each for a different time: their order is known."""
        where = f"{at.scope}timers{number}"
        ordered = sorted(timers, key=lambda key: float(timers[key][0]))
        errors = {key: Failure("Boom", f"late {key}") for key in timers if not timers[key][1]}
        good = [key for key in ordered if key not in errors]
        if how == "first":
            first = ordered[0]
            return ExpectedOutcome([first, timers[first][0]], errors.get(first), seconds=timers[first][0])
        if how == "race" and good:
            return ExpectedOutcome([good[0], timers[good[0]][0]], seconds=timers[good[0]][0])
        longest = timers[ordered[-1]][0]
        if how == "race":
            return ExpectedOutcome(error=race_failed(where, errors), seconds=longest)
        failed = [key for key in ordered if key in errors]
        end = timers[failed[0]][0] if failed else longest
        results = {key: timers[key][0] for key in timers if key in good and timers[key][0] <= end}
        if failed:
            return ExpectedOutcome(error=join_failed(where, results, {failed[0]: errors[failed[0]]}), seconds=end)
        return ExpectedOutcome(results, seconds=end)

    def _branches(self, at: At, name: str, branches: dict[str, Node]) -> dict[str, ExpectedOutcome]:
        scopes = {key: At(at.run, f"{at.scope}{name}/{key}/", at.iteration) for key in branches}
        return {key: self.evaluate(branch, scopes[key]) for key, branch in branches.items()}

    def _decided(
        self, at: At, branches: Mapping[str, Node], parts: Mapping[str, ExpectedOutcome], key: str
    ) -> ExpectedOutcome:
        """One branch decides; the others are cut off."""
        losers = [node for each, node in branches.items() if each != key]
        if at.iteration and any(_wanted(losers, 1)):
            raise Undetermined("how many messages are left for the next iteration")
        return decided(parts, key)

    # Children

    def _call(self, at: At, number: int, program: Program) -> ExpectedOutcome:
        return self._awaited(self._born(at, f"call{number}", program))

    def _born(self, at: At, name: str, program: Program) -> ExpectedOutcome:
        """A child that ends by itself, or together with the run that awaits it."""
        path = at.child(name)
        outcome = self.run(program, path)
        return replace(self._dropped(path, outcome), is_never=True) if outcome.is_never else outcome

    def _awaited(self, child: ExpectedOutcome) -> ExpectedOutcome:
        return replace(child, error=child.error and child_failed(child.error))

    def _limit(self, at: At, number: int, program: Program, limit: str) -> ExpectedOutcome:
        return self._awaited(self._limited(at.child(f"limit{number}"), program, limit))

    def _start(self, at: At, number: int, program: Program, node: Node, on_close: str) -> ExpectedOutcome:
        path = at.child(f"start{number}")
        child, found = self.run(program, path), self.evaluate(node, at)
        if child.is_never:
            raise Undetermined("whether it has come to where it waits")
        if not found.is_fine:
            return beside([found, self._alone(path, child, on_close).left_behind()], found)
        end = self._awaited(child)
        both = beside([child, found], replace(end, seconds=max(child.seconds, found.seconds)))
        return replace(both, value=[found.value, end.value])

    def _forget(self, at: At, number: int, program: Program, on_close: str) -> ExpectedOutcome:
        path = at.child(f"forget{number}")
        return replace(self._alone(path, self.run(program, path), on_close).left_behind(), value="gone", error=None)

    def _alone(self, path: str, child: ExpectedOutcome, on_close: str) -> ExpectedOutcome:
        """A child that is not awaited."""
        if on_close == "cancel":
            states = ENDS if not child.is_never else {"cancelled"}
            return replace(self._dropped(path, child, states), is_never=False, error=None)
        if child.is_never:
            raise Undetermined("nobody ends it")
        return child

    def _doomed(self, at: At, number: int, program: Program) -> ExpectedOutcome:
        path = at.child(f"doomed{number}")
        child, _ = self.live(program, path)
        if not child.is_never:
            raise Undetermined("it may end before it is cancelled")
        dropped = self._dropped(path, child)
        return replace(dropped, is_never=False, error=child_failed(Failure("Cancelled", "cancelled by its parent")))

    def _map(self, at: At, number: int, programs: list[Program], limit: int) -> ExpectedOutcome:
        parts = {str(place): self._born(at, f"map{number}/{place}", one) for place, one in enumerate(programs)}
        if any(part.is_never for part in parts.values()):
            return beside(parts.values(), ExpectedOutcome(is_never=True))
        slots = [0.0] * (limit or len(programs))
        for part in parts.values():
            heapq.heapreplace(slots, slots[0] + part.seconds)
        errors = {key: child_failed(part.error) for key, part in parts.items() if part.error is not None}
        results = {key: part.value for key, part in parts.items() if part.error is None}
        error = join_failed(f"{at.scope}map{number}", results, errors) if errors else None
        return beside(parts.values(), ExpectedOutcome(list(results.values()), error, seconds=max(slots)))

    def _pair(self, at: At, number: int, thrower: Program, catcher: Program) -> ExpectedOutcome:
        paths = [at.child(f"{name}{number}") for name in ("thrower", "catcher")]
        first, second = self.run(thrower, paths[0]), self.run(catcher, paths[1])
        if first.is_never or second.is_never:
            raise Undetermined("nobody ends it")
        if first.error is not None:  # nothing is raised, and the catcher ends with its parent
            waiting = ExpectedOutcome(is_never=True, runs={paths[1]: RunEnd(frozenset({"cancelled"}))})
            return beside([first, waiting], replace(first, error=child_failed(first.error)))
        end = self._awaited(second)
        return replace(first.then(end), value=[first.value, second.value])

    def _throw(self, at: At) -> ExpectedOutcome:
        return ExpectedOutcome(value="thrown")

    def _catch(self, at: At) -> ExpectedOutcome:
        return ExpectedOutcome(value="caught")


def _first_kept(iteration: int, keep: int, every: int) -> int:
    """Return the first iteration that is not pruned during this one."""
    marks = [1 + every * number for number in range(1, iteration) if 1 + every * number <= iteration]
    return max((mark for mark in marks if mark <= marks[-1] - keep), default=1)


def _check_undo(undos: list[frozenset[str]], first: int) -> None:
    """Undoing pruned iterations needs the undo of a kept one; without any the run would be blocked."""
    if not frozenset().union(*undos) <= frozenset().union(*undos[first - 1 :]):
        raise Undetermined("how to undo what an iteration did that is pruned")


def _undo_names(tree: Tree, at: At) -> frozenset[str]:
    """Return the undoable steps of an iteration, by their names there."""
    here = [(effect, is_sure) for effect, is_sure in effects_of(tree) if effect.run == at.run and effect.undo_times]
    if not all(is_sure for _, is_sure in here):
        raise Undetermined("whether a later iteration comes to where what was done can be undone")
    return frozenset(re.sub(r"~\d+", "~", effect.location.removeprefix(at.scope)) for effect, _ in here)


def mail_of(program: Program) -> Counter[int]:
    """Return how many messages the parent, or the world, has to send to a run of this program, by number."""
    return Counter(number for kind, number in _wanted(program["parts"], 1) if kind == "receive")


def news_of(program: Program) -> Counter[int]:
    """Return how many events the world has to emit for it, by number."""
    return Counter(number for kind, number in _wanted(program["parts"], 1) if kind == "news")


def _wanted(node: Any, times: int) -> Iterator[tuple[str, int]]:
    match node:
        case ["receive", number, "sent"]:
            yield from [("receive", number)] * times
        case ["news", number]:
            yield from [("news", number)] * times
        case ["loop", _, count, _, _, body]:
            yield from _wanted(body, times * count)
        case ["start", _, _, beside, _]:  # the child has its own sender
            yield from _wanted(beside, times)
        case list():
            for part in node:
                yield from _wanted(part, times)
        case dict() if "parts" not in node:  # branches; other children get no messages
            yield from _wanted(list(node.values()), times)
        case _:
            pass
