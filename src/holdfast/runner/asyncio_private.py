"""Private names of asyncio that holdfast uses.

Every private name of asyncio is in this file, with its reason; other files import the objects from here. Nothing is
wrapped in a function, because some of these are called for every step. If a Python version lacks a name, the import
fails with an error that says what the name is for. Without the name, a run would replay in another order or on the
wrong event loop. `tests/unit/runner/test_asyncio_private.py` checks the behaviour of each of them.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import events, tasks
from collections.abc import Callable
from types import CodeType
from typing import Any, Final, TypeAlias

_Loop: TypeAlias = asyncio.AbstractEventLoop
_Task: TypeAlias = asyncio.Task[Any]


def _needed(owner: Any, name: str, *, use: str, loss: str) -> Any:
    """Return the private `name` of an asyncio module or class. Raises `ImportError` with its use if it is missing."""
    if not hasattr(owner, name):
        raise ImportError(
            f"holdfast does not run on Python {sys.version.split()[0]}, which has no {owner.__name__}.{name}. "
            f"holdfast uses it to {use}. Without it, {loss}."
        )
    return getattr(owner, name)


# The running loop and the current task of a thread. The documented `asyncio.get_running_loop` raises if no loop runs,
# which is no error here, and no documented function sets the loop. The task functions are documented for libraries
# that extend asyncio, but not for a loop that runs inside another.

get_running_loop_or_none: Callable[[], _Loop | None] = _needed(
    events,
    "_get_running_loop",
    use="see whether code runs on the loop of a run, on another loop or on none",
    loss="a drive could not restore the worker's loop, and workflow code that calls the engine would not be refused",
)
set_running_loop: Callable[[_Loop | None], None] = _needed(
    events,
    "_set_running_loop",
    use="make the loop of a run the running loop while workflow code runs, inside a callback of the worker's loop",
    loss="workflow code would find the loop of the worker, and none of its timers and tasks would be durable",
)
enter_task: Callable[[_Loop, _Task], None] = _needed(
    tasks,
    "_enter_task",
    use="close the coroutine of a task as code of that task when a run leaves memory",
    loss="the `finally` blocks of workflow code would find no current task, and asyncio.timeout would fail in them",
)
leave_task: Callable[[_Loop, _Task], None] = _needed(
    tasks,
    "_leave_task",
    use="end what _enter_task began, and free a thread from a task that could not leave by itself",
    loss="no other task could be entered on that loop, and from Python 3.14 on, on that thread",
)
if sys.version_info >= (3, 14):
    swap_current_task: Callable[[_Loop, _Task | None], _Task | None] = _needed(
        tasks,
        "_swap_current_task",
        use="set the worker's task aside while a run is driven from inside it, because a thread has one current task",
        loss="no task of a run could be entered",
    )


# Tasks and futures that asyncio creates for itself. The loop recognises the function that asks for one only by its code
# object.

GatheringFuture: Any = _needed(
    tasks,
    "_GatheringFuture",
    use="give the future of asyncio.gather a hash that is the same on every replay",
    loss="a set of such futures would have another order on every replay",
)
GATHER_INIT: CodeType = GatheringFuture.__init__.__code__
"""Code that creates the future of `gather`, which calls `get_debug()` of its loop. Its local `self` is that future."""

GATHER_CHILDREN: Final = "_children"
"""Attribute of that future: the gathered futures. From Python 3.14 on, each refers to the task that awaits them all."""

WAIT_FOR: CodeType = tasks.wait_for.__code__
"""Code that creates a task up to Python 3.11. That task must open no scope, because later versions create none."""

if sys.version_info >= (3, 13):
    AS_COMPLETED: CodeType = _needed(
        tasks,
        "_AsCompletedIterator",
        use="start the arguments of asyncio.as_completed in their order",
        loss="they would be started in the order of their addresses, which differs on every replay",
    ).__init__.__code__
    AS_COMPLETED_GIVEN: Final = "aws"
else:
    AS_COMPLETED: CodeType = tasks.as_completed.__code__
    AS_COMPLETED_GIVEN: Final = "fs"
"""Code that creates a task for each coroutine in its arguments, in the order of a set.

The local variable `AS_COMPLETED_GIVEN` has the arguments.
"""

ENSURE_FUTURE: CodeType = tasks.ensure_future.__code__
ENSURE_FUTURE_INNER: CodeType = getattr(tasks, "_ensure_future", tasks.ensure_future).__code__
"""Code between the loop and the function that asks for a task. Up to Python 3.11 there are two such functions."""

WRAPPING_COROUTINE: Final = "_wrap_awaitable"
"""Name of the coroutine into which `ensure_future` wraps any other awaitable."""


# The link between a task and the future that it awaits.

FUTURE_IS_AWAITED: Final = "_asyncio_future_blocking"
"""Attribute of a future: a coroutine yielded it, and no task has taken it yet.

holdfast resets it when it closes or refuses the coroutine. Otherwise the next await of the future would raise another
error.
"""

TASK_AWAITS: Final = "_fut_waiter"
"""Attribute of a task: the future that it awaits. Eviction cuts this link, so that both are freed without a collection.
"""

TASK_STEP_TYPE: Final = "TaskStepMethWrapper"
"""Name of the type of the callback that steps a task.

`gc.get_referents` shows the error that the step will raise. This is the only place that shows that a task awaited a
future of another loop, even if the workflow catches the error.
"""


# The event loop of the simulation.

run_handle: Callable[[asyncio.Handle], None] = _needed(
    asyncio.Handle,
    "_run",
    use="run the callbacks of the event loop of the simulation",
    loss="holdfast.testing.simulate would do nothing",
)


class RoundLoop(asyncio.BaseEventLoop):
    """An event loop that waits for no file. A subclass decides in `run_round` which callbacks run, and when."""

    def run_round(self) -> None:
        raise NotImplementedError

    def _run_once(self) -> None:
        # `run_forever` calls this until it is stopped. The method of the base class waits for files and real time.
        self.run_round()
