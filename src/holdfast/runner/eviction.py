"""Eviction: how the coroutines of a run leave memory without finishing.

A suspended coroutine that is merely dropped runs its `finally` blocks when the collector gets to
it, on whatever loop happens to run then. So each one is closed here, explicitly, on its own loop
and in its own context: `finally` blocks and `except BaseException` run up to their next await,
nothing is logged and nothing is asked for.

`GeneratorExit` rather than cancellation: the user cancelled nothing, and code that reports or
survives a cancellation must not do so because a worker had nothing more to do.

Code may swallow `GeneratorExit` for ever (`while True: try: await … except: pass`). Python runs such code once more
when the coroutine is freed. Anywhere else that would be a disaster: `asyncio.sleep` finds no running loop and raises at
once, so the code spins, and a decorated step is a plain call, so its body is executed. `destroy_survivors` therefore
frees the coroutine on the run's own loop, where every operation only waits.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from inspect import CORO_CLOSED, CORO_CREATED, getcoroutinestate
from threading import get_ident
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any

from holdfast.runner.asyncio_private import (
    FUTURE_IS_AWAITED,
    GATHER_CHILDREN,
    TASK_AWAITS,
    enter_task,
    leave_task,
)
from holdfast.runner.await_chain import await_chain
from holdfast.runner.thread_state import driving
from holdfast.runner.violation import place_of_coroutine, place_of_frame

if TYPE_CHECKING:
    from holdfast.runner.task import RunTask

# How often a task may await something new instead of ending, before it is dropped as it is.
ROUND_LIMIT = 20

# Where to look for coroutines that were not awaited yet, and how far.
_ITERATORS = frozenset({type(iter([0])), type(iter((0,))), type(iter({0: 0}.values())), type(iter({0: 0}.items()))})
_CONTAINERS = frozenset[type]({list, tuple, dict, set}) | _ITERATORS
_CONTAINER_LIMIT = 1_000


def close_task(task: RunTask) -> KeyboardInterrupt | None:
    """Close the coroutine of an unfinished task; return the Ctrl-C that came meanwhile, to be raised later."""
    coroutine = task.get_coro()
    links = await_chain(coroutine) or [coroutine]  # one of C code has no links
    unstarted = list(_unstarted(links))
    interrupt = _unwind(task, links)
    # Not before: the cleanup may want to await one of them.
    for made in unstarted:
        made.close()
    return interrupt


def destroy_survivors(closed: Iterable[RunTask]) -> list[str]:
    """Free the coroutines that swallowed every attempt to close them; return the lines at which they stood."""
    survivors = [task for task in closed if _survives(task)]
    lines = [place_of_coroutine(task.get_coro()) for task in survivors]
    for task in survivors:
        _destroy(task)
    return lines


def _survives(task: RunTask) -> bool:
    coroutine = task.get_coro()
    return type(coroutine) is CoroutineType and getcoroutinestate(coroutine) != CORO_CLOSED


def _destroy(task: RunTask) -> None:
    """Free a coroutine that survived its closing, as code of its task.

    Its code runs once more, up to its next await, and so does that of the coroutines it awaits. Python reports that
    each of them ignored `GeneratorExit`; these reports say nothing new and are dropped.
    """
    doomed: list[object] = [task.get_coro()]
    _detach(task)
    if sys.getrefcount(doomed[0]) > 2:  # the list's and the call's
        _keep_for_ever(doomed[0])
        return
    loop, hook, thread = task.get_loop(), sys.unraisablehook, get_ident()

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if get_ident() != thread or not isinstance(unraisable.exc_value, RuntimeError):
            hook(unraisable)

    sys.unraisablehook = report
    enter_task(loop, task)
    try:
        task.run_context.run(doomed.clear)
    finally:
        leave_task(loop, task)
        sys.unraisablehook = hook


def keep_survivor(fiber: object, frame: FrameType | None) -> None:
    """Keep a fiber of blocking code that swallowed every attempt to close it; note where it stands."""
    _keep_for_ever(fiber)
    loop = driving.loop
    if loop is not None:
        loop.survivors.append(place_of_frame(frame))


def _keep_for_ever(survivor: object) -> None:
    """Never free a survivor that cannot be destroyed here, a fiber or a coroutine that user code still refers to.

    Not even at the end of the process, which frees everything that modules refer to: its code would run once more.
    """
    import ctypes  # here, because hardly any process needs it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(survivor))


def _detach(task: RunTask) -> None:
    """Let a closed task refer to another coroutine, one that has ended, instead of its own.

    It stays unfinished: other survivors may await it.
    """
    ended = _nothing()
    ended.close()
    type(task).__init__(task, ended, loop=task.get_loop(), context=task.run_context)


async def _nothing() -> None:
    """Take the place of a coroutine."""


def close_generator(generator: AsyncGenerator[Any, Any], task: RunTask) -> KeyboardInterrupt | None:
    """Close an async generator that its user left half-way, as if `task` did it."""
    closing = generator.aclose()
    return _unwind(task, [closing], begin=lambda: closing.send(None))


def release(task: RunTask) -> None:
    """Cut the links between a closed task and what it awaited, which would otherwise wait for the collector.

    The plain future's `cancel` is used because it settles at once and calls back; that of a task or
    of a `gather` only asks for it.
    """
    asyncio.Future.cancel(task)
    awaited: object = getattr(task, TASK_AWAITS, None)
    if isinstance(awaited, asyncio.Future) and awaited.get_loop() is task.get_loop():
        asyncio.Future.cancel(awaited)
        if sys.version_info >= (3, 14):  # futures know there who awaits them
            for future in (awaited, *getattr(awaited, GATHER_CHILDREN, ())):
                asyncio.future_discard_from_awaited_by(future, task)


def _unwind(task: RunTask, links: list[Any], *, begin: Callable[[], object] | None = None) -> KeyboardInterrupt | None:
    """End the links of an await chain, all of it as code of `task`, so that cleanup sees what it is used to.

    Innermost first, each by itself. Thrown into the outermost, `GeneratorExit` makes Python close
    what that awaits, and a close does not put up with an await: cleanup that awaits would reach
    the code around it as a `RuntimeError`.
    """
    loop, run = task.get_loop(), task.run_context.run
    interrupt: KeyboardInterrupt | None = None
    rounds = 0
    enter_task(loop, task)
    while links and rounds < ROUND_LIMIT:
        try:
            awaited = run(links[-1].throw, GeneratorExit()) if begin is None else run(begin)
        except KeyboardInterrupt as error:
            interrupt = error
            links.pop()
        except BaseException:  # noqa: BLE001 - it ended, by whatever came out of its cleanup; it has no say any more
            links.pop()
        else:
            # It awaits while it dies. Nobody will wait for that future, so it must not look awaited.
            if isinstance(awaited, asyncio.Future):
                setattr(awaited, FUTURE_IS_AWAITED, False)
            rounds += 1
            links += await_chain(links[-1])[1:]
        begin = None
    leave_task(loop, task)
    return interrupt


def _unstarted(links: Iterable[object]) -> Iterator[CoroutineType[Any, Any, Any]]:
    """Coroutines that are made and not yet awaited, in the variables of a suspended one and of what it awaits.

    Code like `for step in [charge(), pack()]: await step` is no mistake, but Python would warn of
    what was "never awaited" when it is dropped.
    """
    for link in links:
        # The collector's view also shows what stands in no variable, such as the list of a running `for`.
        found = gc.get_referents(link)
        for held in found:  # grows meanwhile
            kind = type(held)
            if kind is CoroutineType:
                if getcoroutinestate(held) == CORO_CREATED:
                    yield held
            elif kind in _CONTAINERS and (kind in _ITERATORS or len(held) < _CONTAINER_LIMIT):
                found += gc.get_referents(held)
                if len(found) > _CONTAINER_LIMIT:
                    break
