"""Violations: workflow code makes a call that only a step may make.

This module finds the line of such a call, writes the message, and has the base class that refuses every call of an
event loop. The turn decides what follows from a violation: the run is blocked.
"""

from __future__ import annotations

import asyncio
import gc
import os
from asyncio import isfuture
from collections.abc import Callable, Iterable
from pathlib import Path
from sys import _getframe
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, NoReturn

from holdfast.core.errors import (
    InvalidRequest,
    JoinFailed,
    NotSerializable,
    PayloadTooLarge,
    RaceFailed,
    WorkflowViolation,
)

_STDLIB = f"{Path(asyncio.__file__).parents[1]}{os.sep}"
_HOLDFAST = f"{Path(__file__).parents[1]}{os.sep}"
# Without a virtual environment, packages are installed below the standard library.
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# Messages of asyncio for an object of another loop: for an await, for a lock or queue, for ensure_future.
# The last one comes from a second await of a foreign future.
_FOREIGN_TEXTS = (
    "attached to a different loop",
    "bound to a different event loop",
    "belongs to a different loop",
    "await wasn't used with future",
)


def explain_foreign(error: BaseException) -> WorkflowViolation | None:
    """Return the violation if asyncio raised this error for a future, lock or queue of another loop, else None.

    It also searches exception groups. The cause of the violation is the recognised error.
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(explain_foreign, error.exceptions)), None)
    if not isinstance(error, (RuntimeError, ValueError)) or not any(text in str(error) for text in _FOREIGN_TEXTS):
        return None
    violation = WorkflowViolation(
        f"workflow code awaited something of another event loop at {_place_of_error(error)}: "
        f"only a step may do that. Move the call into a step: await ctx.step('name', function)"
    )
    violation.__cause__ = error
    return violation


SLIPS: tuple[type[BaseException], ...] = (NameError, ImportError, AttributeError, TypeError, InvalidRequest)
"""Errors of workflow code that are most likely mistakes in it, so that a deploy of better code heals the run.

`InvalidRequest` is what the context raises for a wrong call. An error of a step is a `StepFailed`, so it is none of
these.
"""
_OF_VALUES = (NotSerializable, PayloadTooLarge)
"""Kinds of `InvalidRequest` that are about a value. Better code does not heal them, and they must not stop a run."""


def is_slip(error: BaseException, slips: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Return True if an error, or one that a group of tasks or branches has collected, is one of `slips`."""
    if isinstance(error, slips):
        return not isinstance(error, _OF_VALUES)
    collected: Iterable[BaseException] = ()
    if isinstance(error, BaseExceptionGroup):
        collected = error.exceptions
    elif isinstance(error, (JoinFailed, RaceFailed)):
        collected = error.errors.values()
    return any(is_slip(each, slips) for each in collected)


def place_of(frame: FrameType) -> str:
    """Return the current line of a frame, such as `shop.py:12 in checkout`."""
    return _place(frame, frame.f_lineno)


def place_of_caller() -> str:
    """Return the innermost line of user code on this thread's stack: not of holdfast or the standard library.

    A task of a library coroutine has no such line. Then return the line where the run waits for the task.
    """
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if _is_users(frame):
            return place_of(frame)
        if _is_driver(frame):
            tasks = frame.f_locals["self"].unfinished
            users = (place_of(own[-1]) for task in tasks if (own := _users_frames(_frames_of(task.get_coro()))))
            return next(users, "an unknown line")
        frame = frame.f_back
    return "an unknown line"


def holdfast_call() -> str:
    """Return the function of holdfast that user code called, such as `Engine.start`."""
    frame: FrameType | None = _getframe(1)
    name = ""
    while frame is not None and not _is_users(frame) and not _is_driver(frame):
        if frame.f_code.co_filename.startswith(_HOLDFAST):
            name = frame.f_code.co_qualname
        frame = frame.f_back
    return name


def place_of_coroutine(coroutine: object) -> str:
    """Return the line where a suspended coroutine waits: that of its innermost frame of user code."""
    frames = _frames_of(coroutine)
    return place_of((_users_frames(frames) or frames)[-1]) if frames else "an unknown line"


def place_of_frame(frame: FrameType | None) -> str:
    """Return the line where blocking code waits: that of its innermost frame of user code."""
    while frame is not None:
        if _is_users(frame):
            return place_of(frame)
        frame = frame.f_back
    return "an unknown line"


def _frames_of(coroutine: object) -> list[FrameType]:
    return [frame for link in await_chain(coroutine) if (frame := frame_of(link)) is not None]


def _users_frames(frames: list[FrameType]) -> list[FrameType]:
    return [frame for frame in frames if _is_users(frame)]


def _place_of_error(error: BaseException) -> str:
    place, step = "an unknown line", error.__traceback__
    while step is not None:
        if _is_users(step.tb_frame):
            place = _place(step.tb_frame, step.tb_lineno)
        step = step.tb_next
    return place


def _place(frame: FrameType, line: int | None) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"


def _is_users(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    if filename.startswith((_HOLDFAST, "<frozen ")):
        return False
    return not filename.startswith(_STDLIB) or any(part in filename for part in _INSTALLED)


def _is_driver(frame: FrameType) -> bool:
    """True if this is the frame of a loop that runs callbacks. Frames below it belong to the driver of the run."""
    return frame.f_code.co_qualname == "RunLoop._drain" and frame.f_code.co_filename.startswith(_HOLDFAST)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: object, **__: object) -> NoReturn:
        raise self.refuse(f"loop.{name}()")

    refuse.__name__ = name
    refuse.__qualname__ = f"RefusingLoop.{name}"
    return refuse


# Built from the methods of this Python's event loops, so that methods of later versions are refused too.
# It has the type Any for mypy, because the declared AbstractEventLoop is abstract and could not be instantiated.
RefusingLoop: Any = type(
    "RefusingLoop",
    (asyncio.AbstractEventLoop,),
    {name: _refusal(name) for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_")},
)


# Objects of these private types may stand between a coroutine and the awaitable that it waits for. They do not expose
# that awaitable, but `gc.get_referents` does. `_STEPS` are steps of an async generator; the others only delegate.
_STEPS = frozenset({"async_generator_asend", "async_generator_athrow"})
_OPAQUE = _STEPS | {"anext_awaitable", "coroutine_wrapper"}


def await_chain(awaitable: Any) -> list[Any]:
    """Return the links that are code and have `throw`, from `awaitable` down to the one that waits for a future."""
    links: list[Any] = []
    while awaitable is not None:
        kind = type(awaitable)
        if kind is CoroutineType:
            links.append(awaitable)
            awaitable = awaitable.cr_await
        elif kind is GeneratorType:  # made into a coroutine by `types.coroutine`
            links.append(awaitable)
            awaitable = awaitable.gi_yieldfrom
        elif kind is AsyncGeneratorType:
            awaitable = awaitable.ag_await
        elif kind.__name__ in _OPAQUE:
            if kind.__name__ in _STEPS:
                links.append(awaitable)
            awaitable = _inside(awaitable)
        else:
            break
    return links


def awaited_futures(awaitable: Any) -> list[Any]:
    """Return the future that the innermost link awaits. It is visible only while its task refuses to wait for it."""
    links = await_chain(awaitable)
    if not links or type(links[-1]) is not CoroutineType:
        return []
    return [held for held in gc.get_referents(links[-1].cr_await) if isfuture(held)]


def frame_of(link: Any) -> FrameType | None:
    """Return the frame of a link. None if the link has ended."""
    kind = type(link)
    if kind is CoroutineType:
        return link.cr_frame  # type: ignore[no-any-return]
    if kind is GeneratorType:
        return link.gi_frame  # type: ignore[no-any-return]
    return getattr(_inside(link), "ag_frame", None)


def _inside(opaque: object) -> object:
    for held in gc.get_referents(opaque):
        if type(held) in (CoroutineType, GeneratorType, AsyncGeneratorType) or type(held).__name__ in _OPAQUE:
            return held
    return None
