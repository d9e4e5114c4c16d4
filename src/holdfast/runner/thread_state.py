"""Thread state: what a drive changes about its thread, and how all of it is put back.

While workflow code runs, the thread's running loop and its hooks for async generators are those of
the run. From Python 3.14 on a thread also has only one current task, whatever its loop.
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


# What a drive found on its thread: the running loop, the current task if there is one per thread, the hooks.
# A plain tuple, because one is made for every fact.
Outside: TypeAlias = tuple[asyncio.AbstractEventLoop | None, asyncio.Task[Any] | None, Any]


class _Driving(threading.local):
    """The loop that a thread drives right now.

    It is the running loop, which asyncio could tell, too; but up to 3.11 that asks the system for the process, and such
    questions, several for each step, were a tenth of a worker's time.
    """

    loop: RunLoop | None = None


driving = _Driving()


def take_over(loop: RunLoop, hold_generator: Callable[[AsyncGenerator[Any, Any]], None]) -> Outside:
    """Make `loop` the thread's running loop."""
    outer, outer_task = get_running_loop_or_none(), None
    if sys.version_info >= (3, 14) and outer is not None:
        # Else no task of ours could be entered when a drive is started from inside a task.
        outer_task = swap_current_task(outer, None)
    outside = (outer, outer_task, sys.get_asyncgen_hooks())
    # Without hooks of our own a generator would register with the outer loop, which would close it there.
    sys.set_asyncgen_hooks(hold_generator, None)
    set_running_loop(loop)
    driving.loop = loop
    return outside


def give_back(outside: Outside) -> None:
    """Put back what `take_over` found."""
    outer, outer_task, hooks = outside
    driving.loop = None
    set_running_loop(outer)
    sys.set_asyncgen_hooks(*hooks)
    if sys.version_info >= (3, 14) and outer is not None and outer_task is not None:
        swap_current_task(outer, outer_task)


def free_thread(loop: asyncio.AbstractEventLoop) -> None:
    """Leave the task of `loop` that could not leave by itself, or no other could be entered (from 3.14 on)."""
    set_running_loop(loop)
    task = current_task(loop)
    if task is not None:
        leave_task(loop, task)
