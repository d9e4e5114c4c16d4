"""Eviction: how the coroutines of a run leave memory without finishing.

A suspended coroutine that is merely dropped runs its `finally` blocks when the collector gets to
it, on whatever loop happens to run then. So each one is closed here, explicitly, on its own loop
and in its own context: `finally` blocks and `except BaseException` run up to their next await,
nothing is logged and nothing is asked for.

`GeneratorExit` rather than cancellation: the user cancelled nothing, and code that reports or
survives a cancellation must not do so because a worker had nothing more to do.

Code may swallow `GeneratorExit` for ever (`while True: try: await … except: pass`). Python runs such code once more
when the coroutine or generator is freed, perhaps much later by the collector. Anywhere else that would be a disaster:
`asyncio.sleep` finds no running loop and raises at once, so the code spins, and a decorated step is a plain call, so
its body is executed. `_destroy_survivors` therefore lets Python run it on the run's own loop, where every operation
only waits. Python does so only once for each object, whoever refers to it, and frees it later without a word.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from inspect import CORO_CREATED, getcoroutinestate
from threading import get_ident
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import TYPE_CHECKING, Any

from holdfast.runner.asyncio_private import (
    FUTURE_IS_AWAITED,
    GATHER_CHILDREN,
    TASK_AWAITS,
    enter_task,
    leave_task,
)
from holdfast.runner.await_chain import await_chain, frame_of
from holdfast.runner.takeover import driving
from holdfast.runner.violation import place_of_coroutine, place_of_frame

if TYPE_CHECKING:
    from holdfast.runner.task import RunTask

# How often a task may await something new instead of ending, before it is dropped as it is.
ROUND_LIMIT = 20

# Where to look for coroutines that were not awaited yet, and how far.
_ITERATORS = frozenset({type(iter([0])), type(iter((0,))), type(iter({0: 0}.values())), type(iter({0: 0}.items()))})
_CONTAINERS = frozenset[type]({list, tuple, dict, set}) | _ITERATORS
_CONTAINER_LIMIT = 1_000

# What runs code when it is freed, and how many links of an await chain are looked at then.
_CODE = (CoroutineType, GeneratorType, AsyncGeneratorType)
_LINK_LIMIT = 1_000


def close_round(
    tasks: Sequence[RunTask], generators: Sequence[AsyncGenerator[Any, Any]], root: RunTask
) -> tuple[list[str], KeyboardInterrupt | None]:
    """Close tasks and generators, newest first. Returns the lines at which code stood that swallowed every attempt.

    It also returns the Ctrl-C that came meanwhile, to be raised later. What cleanup has made is for the next round.
    """
    interrupt: KeyboardInterrupt | None = None
    for task in reversed(tasks):
        interrupt = _close_task(task) or interrupt
    for generator in reversed(generators):
        interrupt = _close_generator(generator, root) or interrupt
    lines, stop = _destroy_survivors(tasks, generators, root)
    return lines, stop or interrupt


def _close_task(task: RunTask) -> KeyboardInterrupt | None:
    """Close the coroutine of an unfinished task."""
    coroutine = task.get_coro()
    links = await_chain(coroutine) or [coroutine]  # one of C code has no links
    unstarted = list(_unstarted(links))
    interrupt = _unwind(task, links)
    # Not before: the cleanup may want to await one of them.
    for made in unstarted:
        made.close()
    return interrupt


def _destroy_survivors(
    tasks: Iterable[RunTask], generators: Iterable[AsyncGenerator[Any, Any]], root: RunTask
) -> tuple[list[str], KeyboardInterrupt | None]:
    """End the coroutines and generators that swallowed every attempt to close them.

    Generators end as code of `root`.
    """
    surviving_tasks = [task for task in tasks if frame_of(task.get_coro()) is not None]
    survivors: list[tuple[RunTask, object]] = [(task, task.get_coro()) for task in surviving_tasks]
    survivors += [(root, made) for made in generators if frame_of(made) is not None]
    lines = [place_of_coroutine(code) for _, code in survivors]
    interrupt: KeyboardInterrupt | None = None
    for task, code in survivors:
        interrupt = _destroy(task, code) or interrupt
    survivors.clear()
    for task in surviving_tasks:
        _detach(task)
    return lines, interrupt


def _destroy(task: RunTask, code: object) -> KeyboardInterrupt | None:
    """Call the finalizer of a survivor, as code of `task`, and those of the links that it awaits.

    Each of them runs once more, up to its next await. Python reports what came of it: that one of them ignored
    `GeneratorExit`, or an error. These reports say nothing new and are dropped.
    """
    loop, hook, thread = task.get_loop(), sys.unraisablehook, get_ident()
    interrupts: list[KeyboardInterrupt] = []

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if get_ident() != thread or not isinstance(unraisable.object, _CODE):
            hook(unraisable)
        elif isinstance(unraisable.exc_value, KeyboardInterrupt):
            interrupts.append(unraisable.exc_value)

    sys.unraisablehook = report
    enter_task(loop, task)
    try:
        task.run_context.run(_finalize, code)
    finally:
        leave_task(loop, task)
        sys.unraisablehook = hook
    return interrupts[-1] if interrupts else None


def _finalize(code: object) -> None:
    """Call the finalizers of a survivor and of its links, outermost first: each may await something new afterwards."""
    import ctypes  # here, because hardly any process needs it

    call_finalizer = ctypes.pythonapi.PyObject_CallFinalizer
    call_finalizer.argtypes, call_finalizer.restype = [ctypes.py_object], None
    for _ in range(_LINK_LIMIT):
        if isinstance(code, _CODE):
            call_finalizer(code)
        links = [link for link in await_chain(code) if link is not code]
        if not links:
            return
        code = links[0]


def keep_survivor(fiber: object, frame: FrameType | None) -> None:
    """Keep a fiber of blocking code that swallowed every attempt to close it; note where it stands."""
    keep_for_ever([fiber])
    loop = driving.loop
    if loop is not None:
        loop.survivors.append(place_of_frame(frame))


def keep_for_ever(survivors: Iterable[object]) -> None:
    """Never free survivors that cannot be destroyed, such as a fiber.

    Not even at the end of the process, which frees everything that modules refer to: their code would run once more.
    """
    for survivor in survivors:
        import ctypes  # here, because hardly any process needs it

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(survivor))


def _detach(task: RunTask) -> None:
    """Let a closed task refer to another coroutine, one that has ended, so that its own is not part of a circle.

    It stays unfinished: other survivors may await it.
    """
    ended = _nothing()
    ended.close()
    type(task).__init__(task, ended, loop=task.get_loop(), context=task.run_context)


async def _nothing() -> None:
    """Take the place of a coroutine."""


def _close_generator(generator: AsyncGenerator[Any, Any], task: RunTask) -> KeyboardInterrupt | None:
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
