"""Blocking code on the run loop: a plain function that waits, without a thread.

The function runs in a fiber, a greenlet of its own. Where it would block, the fiber switches out with what is to be
awaited; the coroutine that runs it awaits that and switches back in with the outcome. To the loop it is a coroutine
like any other: same order, same replay, same eviction.

Needs the extra `sync`, so this module is imported when the first `def` workflow is registered, and not before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

from holdfast.core.errors import InvalidRequest
from holdfast.runner.eviction import ROUND_LIMIT, keep_survivor
from holdfast.runner.task import RunTask

R = TypeVar("R")


class Fiber(greenlet):  # type: ignore[misc]  # greenlet tells no types
    """A greenlet that runs workflow code. It is switched to by `run_blocking` only, always on the worker's thread."""


async def run_blocking(function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Call a function in which `wait` may be used, as code of the current task."""
    fiber = Fiber(function)
    fiber.gr_context = _own_context()
    try:
        answer: Any = _below_here(fiber).switch(*args, **kwargs)
        while not fiber.dead:
            try:
                value = await answer
            except GeneratorExit:
                raise  # the run leaves memory; the fiber hears of it below
            except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the code that waits
                answer = _below_here(fiber).throw(error)
            else:
                answer = _below_here(fiber).switch(value)
    finally:
        _close(fiber)
    if asyncio.iscoroutine(answer):
        answer.close()
        raise InvalidRequest(
            f"code of a `def` workflow returned a coroutine, which nobody would await there: {function!r}; "
            "return the value, or make the whole workflow `async def`"
        )
    result: R = answer
    return result


def wait(awaitable: Awaitable[R]) -> R:
    """Block until something of this run has come about: give the loop back, and go on with the outcome."""
    fiber = getcurrent()
    if type(fiber) is not Fiber or fiber.parent is None:
        _discard(awaitable)
        raise InvalidRequest(
            "a blocking call that is not made by the workflow function itself, but in a callback, a coroutine or a "
            "greenlet of its making; only the function and what it calls directly can wait"
        )
    outcome: R = fiber.parent.switch(awaitable)
    return outcome


def _own_context() -> Any:
    """The context of the current task, and not a copy: what the function sets is what its task has."""
    task = asyncio.current_task()
    assert isinstance(task, RunTask), "blocking code runs on the loop of a run"
    return task.run_context


def _below_here(fiber: Fiber) -> Fiber:
    """A fiber, made ready to switch back to where it is switched to from.

    That is not always where it was begun: a task with an eager start begins inside of the fiber that made it.
    """
    here = getcurrent()
    if fiber.parent is not here:
        fiber.parent = here
    return fiber


def _close(fiber: Fiber) -> None:
    """End a fiber that has not ended: its `finally` blocks run up to where they would wait.

    One that is merely dropped would never run them and never be freed. What it asks for while it dies is thrown
    away; one that goes on asking is given up in the end, and kept: freeing it would run its code once more, on whatever
    loop happens to run then, where a step is a plain call.
    """
    for _ in range(ROUND_LIMIT):
        if fiber.dead:
            return
        _discard(_below_here(fiber).throw(GreenletExit))
    if not fiber.dead:
        keep_survivor(fiber, fiber.gr_frame)


def _discard(awaitable: object) -> None:
    """Let go of something that nobody will await, without Python's warning about it."""
    if isinstance(awaitable, Coroutine):
        awaitable.close()
