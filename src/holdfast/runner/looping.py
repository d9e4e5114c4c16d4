"""A durable loop: a body that is called again and again with a state, and whose old iterations are pruned.

Every `every` iterations the loop records its state as a mark: an entry at `loop/~11` has the state with which iteration
11 begins. A resumed run replays from the oldest mark that is kept, so its cost does not grow with the number of
iterations. Entries of earlier iterations are removed, except those that undo needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin

from holdfast.core.codec import Codec
from holdfast.core.entries import PRUNED
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import hints_of, is_count
from holdfast.core.location import Scope, iteration_of
from holdfast.runner.operation import Mark

if TYPE_CHECKING:
    from holdfast.runner.code_requests import CodeRequests

S_co = TypeVar("S_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Continue(Generic[S_co]):
    """Return it from the body of `ctx.loop` to continue with the next iteration."""

    state: S_co
    """The state that the next iteration gets."""


@dataclass(frozen=True, slots=True)
class Break(Generic[V_co]):
    """Return it from the body of `ctx.loop` to end the loop."""

    value: V_co = None  # type: ignore[assignment]  # `Break()` is a Break[None]
    """The value that `ctx.loop` returns."""


class Looping:
    """One loop of a run, from its call to its end."""

    def __init__(
        self, requests: CodeRequests, location: str, body: Callable[..., Any], state: Any, *, keep: int, every: int
    ) -> None:
        if not callable(body):
            raise InvalidRequest(
                f"loop {location!r}: expected a body such as `async def body(ctx, state)`, got {body!r}"
            )
        _check_count(location, "keep", keep)
        _check_count(location, "every", every)
        self._requests = requests
        self._location = location
        self._body = body
        self._keep = keep
        self._every = every
        self._states, self._values = self._requests.definition.loop_codecs(body)
        self._first = self._states.store(state, f"state of loop {location!r}")
        self._marks: list[int] = []
        self._oldest = 1

    async def run(self) -> Any:
        """Run the remaining iterations and return the value of the loop."""
        # A loop with steps to undo is replayed even after its end, because its code has the undo functions.
        if self._requests.recorded(self._location) is not None and not self._requests.may_undo(self._location):
            self._requests.skip_iterations(self._location, None)
            return await self._recall_end()
        number, state = await self._resume()
        while True:
            step = await self._iterate(number, state)
            if isinstance(step, Break):
                return await self._end(step.value)
            number += 1
            text, state = self._states.store(step.state, f"state of loop {self._location!r}")
            if self._is_marked(number):
                await self._mark(number, text)

    def _is_marked(self, number: int) -> bool:
        """True if this iteration begins with a mark: a recorded one, or one to record now."""
        # A mark that code with another `every` recorded is part of the history, so the loop must ask for it too. No
        # mark is added while recorded entries follow: its position would be out of order.
        if self._requests.recorded(iteration_of(self._location, number)) is not None:
            return True
        return (number - 1) % self._every == 0 and not self._requests.has_ahead(self._location)

    async def _iterate(self, number: int, state: Any) -> Continue[Any] | Break[Any]:
        path = iteration_of(self._location, number)
        scope = Scope(f"{path}/", iteration=path)
        try:
            with self._requests.loop.within(scope):
                step = self._body(self._requests.context, state)
                if inspect.isawaitable(step):
                    step = await step
        finally:
            if scope.has_tasks and not self._requests.loop.is_evicting:
                self._cancel_rest(path)
        if not isinstance(step, (Continue, Break)):
            raise InvalidRequest(
                f"the body of loop {self._location!r} returned {step!r}; it must return Continue(state) or Break(value)"
            )
        return step

    def _cancel_rest(self, path: str) -> None:
        """Cancel tasks that an iteration has left behind: a run that resumes after it would not have them."""
        for task in self._requests.loop.unfinished:
            if task.scope.path.startswith(f"{path}/"):
                task.cancel()

    async def _resume(self) -> tuple[int, Any]:
        """Return the iteration and the state to begin with: the oldest mark that is kept, or the first iteration."""
        recorded = self._requests.marks(self._location)
        is_pruned = any(mark.ref == PRUNED for mark in recorded.values())
        # Before the first pruning, the first iteration has no mark. If it has steps to undo, replay it: the current
        # iteration may not have reached the code that names the undo functions.
        if not recorded or (not is_pruned and self._requests.may_undo(self._location)):
            return 1, self._first[1]
        number = min(recorded)
        self._oldest = number if is_pruned else 1
        self._marks = [number]
        self._requests.skip_iterations(self._location, number)
        entry = await self._requests.perform(Mark(iteration_of(self._location, number), ""))
        return number, await self._requests.recall(self._states, entry.result, f"state of loop {self._location!r}")

    async def _mark(self, number: int, text: str) -> None:
        """Record the state with which an iteration begins, and prune old iterations."""
        location = iteration_of(self._location, number)
        self._marks.append(number)
        if self._requests.recorded(location) is not None:
            # The next new mark prunes old iterations, and all of them: the run resumes at the oldest mark that is left,
            # and expects every entry after it.
            await self._requests.perform(Mark(location, text))
            return
        floor = max((mark for mark in self._marks if mark <= number - self._keep), default=1)
        stale = range(self._oldest, floor)
        self._oldest = max(self._oldest, floor)
        self._marks = [mark for mark in self._marks if mark >= floor]
        await self._requests.perform(Mark(location, text, ref=self._pruned_ref()))
        self._requests.prune([iteration_of(self._location, old) for old in stale])

    async def _end(self, value: Any) -> Any:
        text, value = self._values.store(value, f"value of loop {self._location!r}")
        await self._requests.perform(Mark(self._location, text, ref=self._pruned_ref()))
        return value

    async def _recall_end(self) -> Any:
        entry = await self._requests.perform(Mark(self._location, ""))
        return await self._requests.recall(self._values, entry.result, f"value of loop {self._location!r}")

    def _pruned_ref(self) -> str | None:
        return PRUNED if self._oldest > 1 else None


def _check_count(location: str, name: str, count: object) -> None:
    if not is_count(count):
        raise InvalidRequest(f"loop {location!r}: {name} must be a number of iterations, at least 1, not {count!r}")


def loop_codecs(body: Callable[..., Any]) -> tuple[Codec[Any], Codec[Any]]:
    """Return the codecs for the state and the value of a loop, by the annotations of its body."""
    hints = hints_of(body)
    parameters = list(inspect.signature(body).parameters)
    state = hints.get(parameters[1], Any) if len(parameters) > 1 else Any
    return Codec(state), Codec(_value_hint(hints.get("return", Any)))


def _value_hint(returned: Any) -> Any:
    """Return the `V` of a body that returns `Continue[S] | Break[V]`."""
    for part in (returned, *get_args(returned)):
        if get_origin(part) is Break:
            return get_args(part)[0]
    return Any
