"""What holdfast uses of asyncio beyond its documented interface.

Every private name of asyncio stands in this file, with its reason; other files import the objects from here. Nothing is
wrapped in a function, because some of these are called for every step. A Python that lacks a name is refused at import
with a sentence that says what the name is for: a run that went on without it would replay in another order, or would
end up on the wrong event loop. `tests/unit/runner/test_asyncio_private.py` checks what each of them does.
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
    """The private `name` of a module or class of asyncio, or an error that says what holdfast needs it for."""
    if not hasattr(owner, name):
        raise ImportError(
            f"holdfast does not run on Python {sys.version.split()[0]}, which has no {owner.__name__}.{name}. "
            f"holdfast uses it to {use}. Without it, {loss}."
        )
    return getattr(owner, name)


# The running loop and the current task of a thread. The documented `asyncio.get_running_loop` raises where no loop
# runs, which is no error here, and nothing documented sets the loop. The task functions are documented for libraries
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
        use="set the worker's task aside while a run is driven from inside it, as a thread has only one current task",
        loss="no task of a run could be entered",
    )


# Tasks and futures that asyncio creates for itself. The loop recognises the code that asks for one by its code object,
# because nothing else tells it.

GatheringFuture: Any = _needed(
    tasks,
    "_GatheringFuture",
    use="give the future of asyncio.gather a hash that is the same on every replay",
    loss="a set of such futures would have another order on every replay",
)
GATHER_INIT: CodeType = GatheringFuture.__init__.__code__
"""It creates the future of `gather`, which asks its loop for `get_debug()`; its local `self` is that future."""

GATHER_CHILDREN: Final = "_children"
"""Attribute of that future: what was gathered. From 3.14 on each of them holds on to the task that awaits the whole."""

WAIT_FOR: CodeType = tasks.wait_for.__code__
"""Up to 3.11 it creates a task, which must not count as a branch, as later versions create none."""

if sys.version_info >= (3, 13):
    AS_COMPLETED: CodeType = _needed(
        tasks,
        "_AsCompletedIterator",
        use="start what asyncio.as_completed was given in the order in which it was given",
        loss="it would be started in the order of addresses, which differs on every replay",
    ).__init__.__code__
    AS_COMPLETED_GIVEN: Final = "aws"
else:
    AS_COMPLETED: CodeType = tasks.as_completed.__code__
    AS_COMPLETED_GIVEN: Final = "fs"
"""It creates a task for each coroutine that it was given, in the order of a set; that local variable has them all."""

ENSURE_FUTURE: CodeType = tasks.ensure_future.__code__
ENSURE_FUTURE_INNER: CodeType = getattr(tasks, "_ensure_future", tasks.ensure_future).__code__
"""The code between the loop and the function that asks for a task; up to 3.11 there are two such functions."""

WRAPPING_COROUTINE: Final = "_wrap_awaitable"
"""Name of the coroutine that `ensure_future` makes of any other awaitable."""


# The link between a task and the future that it awaits.

FUTURE_IS_AWAITED: Final = "_asyncio_future_blocking"
"""Attribute of a future: a coroutine yielded it, and no task has taken it yet. A future that is left so by a coroutine
which holdfast closes or refuses would be taken for another error where it is awaited next."""

TASK_AWAITS: Final = "_fut_waiter"
"""Attribute of a task: the future that it awaits. Eviction cuts this link, or both would wait for the collector."""

TASK_STEP_TYPE: Final = "TaskStepMethWrapper"
"""Name of the type of the callback that steps a task, to which the collector sees the error that the step will raise.
Only there can be seen that a task awaited a future of another loop, whatever the workflow makes of the error."""


# The event loop of the simulation.

run_handle: Callable[[asyncio.Handle], None] = _needed(
    asyncio.Handle,
    "_run",
    use="call what was scheduled on the event loop of the simulation",
    loss="holdfast.testing.simulate would do nothing",
)


class RoundLoop(asyncio.BaseEventLoop):
    """An event loop that waits for no file: a subclass says in `run_round` what is called, and when."""

    def run_round(self) -> None:
        raise NotImplementedError

    def _run_once(self) -> None:
        # Called by `run_forever` until it is stopped; that of the base class waits for files and real time.
        self.run_round()
