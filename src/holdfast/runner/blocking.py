"""Blocking code on the run loop: a plain function that waits, without a thread.

The function runs in a fiber, a greenlet of its own. When it blocks, the fiber switches out with an awaitable. The
coroutine that runs the fiber awaits it and switches back in with the outcome. To the loop it is a coroutine like any
other, with the same order, replay and eviction.

This module needs the extra `sync`, so it is imported only when the first `def` workflow is registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

from holdfast.core.errors import InvalidRequest
from holdfast.runner.eviction import ROUND_LIMIT, keep_for_ever
from holdfast.runner.loop import RunTask, driving
from holdfast.runner.violation import place_of_frame

R = TypeVar("R")


class Fiber(greenlet):  # type: ignore[misc]  # greenlet has no type hints
    """A greenlet that runs workflow code. Only `run_blocking` switches to it, always on the worker's thread."""


async def run_blocking(function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Call a function in which `wait` may be used, as code of the current task."""
    fiber = Fiber(function)
    task = asyncio.current_task()
    assert isinstance(task, RunTask), "blocking code runs on the loop of a run"
    fiber.gr_context = task.run_context  # not a copy: variables that the function sets are set in its task
    try:
        answer: Any = _below_here(fiber).switch(*args, **kwargs)
        while not fiber.dead:
            try:
                value = await answer
            except GeneratorExit:
                raise  # the run leaves memory; `_close` below ends the fiber
            except BaseException as error:  # noqa: BLE001 - any error belongs to the code that waits
                answer = _below_here(fiber).throw(error)
            else:
                answer = _below_here(fiber).switch(value)
    finally:
        _close(fiber)
    if asyncio.iscoroutine(answer):
        answer.close()
        raise InvalidRequest(
            f"code of a `def` workflow returned a coroutine, which is never awaited there: {function!r}; "
            "return the value, or make the whole workflow `async def`"
        )
    result: R = answer
    return result


def wait(awaitable: Awaitable[R]) -> R:
    """Block until an awaitable of this run is done, and return its outcome. The loop runs other code meanwhile."""
    fiber = getcurrent()
    if type(fiber) is not Fiber or fiber.parent is None:
        _discard(awaitable)
        raise InvalidRequest(
            "a blocking call was made in a callback, a coroutine or another greenlet, not by the workflow function; "
            "only the workflow function and functions that it calls directly can wait"
        )
    outcome: R = fiber.parent.switch(awaitable)
    return outcome


def delivered(operation: Coroutine[Any, Any, Any]) -> Any:
    """Return the outcome of an operation in a fiber, which can wait for it. Elsewhere, return the operation."""
    return wait(operation) if type(getcurrent()) is Fiber else operation


def _below_here(fiber: Fiber) -> Fiber:
    """Make the current greenlet the parent of a fiber, so that the fiber switches back here.

    The parent may differ from the one at its start: a task with an eager start begins inside the fiber that created it.
    """
    here = getcurrent()
    if fiber.parent is not here:
        fiber.parent = here
    return fiber


def _close(fiber: Fiber) -> None:
    """End a fiber that has not ended. Its `finally` blocks run up to their first wait.

    A fiber that is only dropped would never run them and never be freed. Requests that it makes while it ends are
    discarded. A fiber that still asks after `ROUND_LIMIT` rounds is kept forever. Freeing it would run its code once
    more, on any loop that runs then, where a step is a plain call.
    """
    for _ in range(ROUND_LIMIT):
        if fiber.dead:
            return
        _discard(_below_here(fiber).throw(GreenletExit))
    if not fiber.dead:
        keep_for_ever(fiber)
        if driving.loop is not None:
            driving.loop.survivors.append(place_of_frame(fiber.gr_frame))


def _discard(awaitable: object) -> None:
    """Close a coroutine that will never be awaited, so that Python does not warn about it."""
    if isinstance(awaitable, Coroutine):
        awaitable.close()
