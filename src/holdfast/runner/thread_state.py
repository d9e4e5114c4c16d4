"""Thread state: the settings of a thread that a drive changes, and functions that restore them.

While workflow code runs, the thread's running loop and its hooks for async generators are those of the run. From
Python 3.14 on, a thread also has only one current task across all loops.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio.tasks import current_task
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.runner.asyncio_private import get_running_loop_or_none, leave_task, set_running_loop

if sys.version_info >= (3, 14):
    from holdfast.runner.asyncio_private import swap_current_task

if TYPE_CHECKING:
    from holdfast.runner.loop import RunLoop


# The state of the thread before a drive: the running loop, the current task (if there is one per thread), the hooks.
# It is a plain tuple, because every fact needs one.
Outside: TypeAlias = tuple[asyncio.AbstractEventLoop | None, asyncio.Task[Any] | None, Any]


class _Driving(threading.local):
    """The loop that a thread drives now.

    asyncio also knows the running loop. But up to Python 3.11 it asks the system for the process id each time, and
    several such calls per step took a tenth of a worker's time.
    """

    loop: RunLoop | None = None


driving = _Driving()


def take_over(loop: RunLoop, hold_generator: Callable[[AsyncGenerator[Any, Any]], None]) -> Outside:
    """Make `loop` the thread's running loop."""
    outer, outer_task = get_running_loop_or_none(), None
    if sys.version_info >= (3, 14) and outer is not None:
        # Otherwise no task of the run could be entered when a drive starts inside a task.
        outer_task = swap_current_task(outer, None)
    outside = (outer, outer_task, sys.get_asyncgen_hooks())
    # Without its own hooks, a generator would register with the outer loop, which would close it there.
    sys.set_asyncgen_hooks(hold_generator, None)
    set_running_loop(loop)
    driving.loop = loop
    return outside


def give_back(outside: Outside) -> None:
    """Restore the state that `take_over` found."""
    outer, outer_task, hooks = outside
    driving.loop = None
    set_running_loop(outer)
    sys.set_asyncgen_hooks(*hooks)
    if sys.version_info >= (3, 14) and outer is not None and outer_task is not None:
        swap_current_task(outer, outer_task)


def free_thread(loop: asyncio.AbstractEventLoop) -> None:
    """Leave a task of `loop` that could not leave by itself. From 3.14 on, no other task could be entered otherwise."""
    set_running_loop(loop)
    task = current_task(loop)
    if task is not None:
        leave_task(loop, task)
