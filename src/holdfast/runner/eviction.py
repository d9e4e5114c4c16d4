"""Eviction: removes the unfinished coroutines of a run from memory.

A suspended coroutine that is only dropped runs its `finally` blocks when garbage collection finds it, on any loop that
runs at that moment. So this module closes each one explicitly, on its own loop and in its own context. `finally`
blocks and `except BaseException` run up to their next await. Nothing is logged and no request is accepted.

Coroutines get `GeneratorExit` and no cancellation, because the user cancelled nothing. Code that reports or survives a
cancellation must not do so only because a worker suspends the run.

Code may swallow `GeneratorExit` forever (`while True: try: await … except: pass`). Python runs such code once more when
the coroutine is freed. Outside the run's loop that would be a disaster. `asyncio.sleep` would find no running loop and
raise at once, so the code would spin. A decorated step would be a plain call, so its body would be executed.
`destroy_survivors` therefore frees the coroutine on the run's own loop, where every operation only waits.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from inspect import CORO_CLOSED, CORO_CREATED, getcoroutinestate
from threading import get_ident
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from holdfast.runner.asyncio_private import (
    FUTURE_IS_AWAITED,
    GATHER_CHILDREN,
    TASK_AWAITS,
    enter_task,
    leave_task,
)
from holdfast.runner.violation import await_chain, place_of_coroutine

if TYPE_CHECKING:
    from holdfast.runner.loop import RunTask

# Maximum number of times that a task may await again while it is closed, before it counts as a survivor.
ROUND_LIMIT = 20

# Types of objects in which to search for coroutines that were not awaited yet, and the limit of that search.
_ITERATORS = frozenset({type(iter([0])), type(iter((0,))), type(iter({0: 0}.values())), type(iter({0: 0}.items()))})
_CONTAINERS = frozenset[type]({list, tuple, dict, set}) | _ITERATORS
_CONTAINER_LIMIT = 1_000


def close_task(task: RunTask) -> KeyboardInterrupt | None:
    """Close the coroutine of an unfinished task. Return a Ctrl-C that came meanwhile, to be raised later."""
    coroutine = task.get_coro()
    links = await_chain(coroutine) or [coroutine]  # a coroutine of C code has no links
    unstarted = list(_unstarted(links))
    interrupt = _unwind(task, links)
    # Close these last: the cleanup may await one of them.
    for made in unstarted:
        made.close()
    return interrupt


def destroy_survivors(closed: Iterable[RunTask]) -> list[str]:
    """Free the coroutines that swallowed every attempt to close them. Return the lines where they waited."""
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

    Its code, and that of the coroutines it awaits, runs once more up to the next await. Python reports that each of
    them ignored `GeneratorExit`. These reports say nothing new and are dropped.
    """
    doomed: list[object] = [task.get_coro()]
    _detach(task)
    if sys.getrefcount(doomed[0]) > 2:  # one reference of the list, one of the call
        keep_for_ever(doomed[0])
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


def keep_for_ever(survivor: object) -> None:
    """Never free a survivor that cannot be destroyed here: a fiber, or a coroutine that user code still refers to.

    A reference in a module is not enough. The end of the process frees those, and the code would run once more.
    """
    import ctypes  # imported here, because hardly any process needs it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(survivor))


def _detach(task: RunTask) -> None:
    """Replace the coroutine of a closed task by one that has ended.

    The task stays unfinished, because other survivors may await it.
    """
    ended = _nothing()
    ended.close()
    type(task).__init__(task, ended, loop=task.get_loop(), context=task.run_context)


async def _nothing() -> None:
    """Do nothing, in place of a coroutine that is detached."""


def close_generator(generator: AsyncGenerator[Any, Any], task: RunTask) -> KeyboardInterrupt | None:
    """Close an async generator that user code left unfinished, as code of `task`."""
    closing = generator.aclose()
    return _unwind(task, [closing], begin=lambda: closing.send(None))


def release(task: RunTask) -> None:
    """Cut the links between a closed task and its awaited future, so that both are freed without garbage collection.

    This uses `cancel` of the plain future, because it settles at once and runs callbacks. The `cancel` of a task or
    of a `gather` only requests a cancellation.
    """
    asyncio.Future.cancel(task)
    awaited: object = getattr(task, TASK_AWAITS, None)
    if isinstance(awaited, asyncio.Future) and awaited.get_loop() is task.get_loop():
        asyncio.Future.cancel(awaited)
        if sys.version_info >= (3, 14):  # from 3.14 on, a future refers to the tasks that await it
            for future in (awaited, *getattr(awaited, GATHER_CHILDREN, ())):
                asyncio.future_discard_from_awaited_by(future, task)


def _unwind(task: RunTask, links: list[Any], *, begin: Callable[[], object] | None = None) -> KeyboardInterrupt | None:
    """End the links of an await chain as code of `task`, so that cleanup code sees its usual current task and context.

    It ends each link by itself, innermost first. If `GeneratorExit` were thrown into the outermost link, Python would
    close the awaitable inside, and a close does not allow an await. Cleanup code that awaits would then raise
    `RuntimeError` into the code around it.
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
        except BaseException:  # noqa: BLE001 - the link has ended, and an error of its cleanup does not count
            links.pop()
        else:
            # The cleanup awaits. No task will wait for that future, so it must not look awaited.
            if isinstance(awaited, asyncio.Future):
                setattr(awaited, FUTURE_IS_AWAITED, False)
            rounds += 1
            links += await_chain(links[-1])[1:]
        begin = None
    leave_task(loop, task)
    return interrupt


def _unstarted(links: Iterable[object]) -> Iterator[CoroutineType[Any, Any, Any]]:
    """Yield coroutines that were created but not awaited yet, in the variables of the links.

    Code like `for step in [charge(), pack()]: await step` is correct, but Python would warn that such a coroutine "was
    never awaited" when it is dropped.
    """
    for link in links:
        # `gc.get_referents` also finds objects that are in no variable, such as the list of a running `for`.
        found = gc.get_referents(link)
        for held in found:  # the list grows during the loop
            kind = type(held)
            if kind is CoroutineType:
                if getcoroutinestate(held) == CORO_CREATED:
                    yield held
            elif kind in _CONTAINERS and (kind in _ITERATORS or len(held) < _CONTAINER_LIMIT):
                found += gc.get_referents(held)
                if len(found) > _CONTAINER_LIMIT:
                    break
