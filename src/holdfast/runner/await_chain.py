"""The await chain of a suspended coroutine: the awaitable that it awaits, and so on to the innermost one."""

from __future__ import annotations

import gc
from asyncio import isfuture
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

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
