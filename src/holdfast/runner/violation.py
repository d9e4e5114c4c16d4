"""A violation: workflow code did what only a step may do, and the line where it did it.

Here is how such a line is found, what is said about it, and the base class that refuses every
call of an event loop. What follows from a violation (the run is blocked) is the turn's business.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from sys import _getframe
from types import FrameType
from typing import Any, NoReturn

from holdfast.core.errors import WorkflowViolation
from holdfast.runner.await_chain import await_chain, frame_of

_STDLIB = f"{Path(asyncio.__file__).parents[1]}{os.sep}"
_HOLDFAST = f"{Path(__file__).parents[1]}{os.sep}"
# Packages are installed below the standard library wherever there is no virtual environment.
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# How asyncio says that an awaited thing is another loop's: by an await, by a lock or queue, by ensure_future.
# The last one comes of awaiting a foreign future again that was refused once.
_FOREIGN_TEXTS = (
    "attached to a different loop",
    "bound to a different event loop",
    "belongs to a different loop",
    "await wasn't used with future",
)


def explain_foreign(error: BaseException) -> WorkflowViolation | None:
    """The violation behind an error that asyncio raises for a future, lock or queue of another loop, else None.

    Looks into exception groups too. The violation's cause is the error that was recognised.
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(explain_foreign, error.exceptions)), None)
    if not isinstance(error, (RuntimeError, ValueError)) or not any(text in str(error) for text in _FOREIGN_TEXTS):
        return None
    violation = WorkflowViolation(
        f"workflow code awaited something of another event loop at {_place_of_error(error)}: "
        f"only a step may do that. Move it into one: await ctx.step('name', function)"
    )
    violation.__cause__ = error
    return violation


def place_of(frame: FrameType) -> str:
    """The line a frame stands at, such as `shop.py:12 in checkout`."""
    return _place(frame, frame.f_lineno)


def place_of_caller() -> str:
    """The innermost line on this thread's stack that is neither holdfast's nor the standard library's."""
    frame: FrameType | None = _getframe(1)
    while frame is not None:
        if _is_users(frame):
            return place_of(frame)
        frame = frame.f_back
    return "an unknown line"


def place_of_coroutine(coroutine: object) -> str:
    """The line at which a suspended coroutine waits: its innermost frame of the user's own code."""
    frames = [frame for link in await_chain(coroutine) if (frame := frame_of(link)) is not None]
    users = [frame for frame in frames if _is_users(frame)]
    return place_of((users or frames)[-1]) if frames else "an unknown line"


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


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: object, **__: object) -> NoReturn:
        raise self.refuse(f"loop.{name}()")

    refuse.__name__ = name
    refuse.__qualname__ = f"RefusingLoop.{name}"
    return refuse


# Made from what this Python's loops can do, so that a method of a later version is refused without our knowing it.
# A class of type Any to mypy: the declared AbstractEventLoop is abstract and could not be instantiated.
RefusingLoop: Any = type(
    "RefusingLoop",
    (asyncio.AbstractEventLoop,),
    {name: _refusal(name) for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_")},
)
