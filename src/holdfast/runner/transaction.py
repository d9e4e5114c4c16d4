"""A transaction: a call whose function writes to the store's own database, together with the record of its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.errors import Fatal, InvalidRequest
from holdfast.core.model import Entry, EntryKind, EntryState
from holdfast.runner.operation import DEFAULT_STEP_OPTIONS, StepCall, StepOptions
from holdfast.runner.step_info import StepInfo, current_step


class TxCall(StepCall):
    """A step that is executed by the store. It is a checkpoint of its run: whatever was fed before goes with it."""

    kind = EntryKind.TX
    __slots__ = ()


class Attempt:
    """One attempt at a transaction, for the store to carry out: what the function wrote, and this entry, or neither.

    Called on a thread of the store's, with a connection of its driver; for several runs at once, if the store can do
    that. It changes nothing of the run: its answer is fed when the store has committed.
    """

    def __init__(self, call: TxCall, info: StepInfo, position: int, stamp: Micros) -> None:
        self.location = call.location
        self._call = call
        self._position = position
        self._stamp = stamp
        self.context = copy_context()
        self.context.run(current_step.set, info)

    def __call__(self, connection: Any, now: Micros) -> Entry:
        """Call the function; the entry to be recorded. Raises what it raises, and what its result is refused for."""
        call = self._call
        # In a copy of the copy: an attempt whose commit failed is made again.
        value = self.context.copy().run(call.function, connection, *call.args)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise Fatal(f"the function of transaction {self.location!r} returned something to await; give a sync one")
        text, _ = call.codec.store(value, f"result of transaction {self.location!r}")
        entry = call.settled(EntryState.DONE, self._position, max(self._stamp, now), result=text)
        return replace(entry, attempts=call.attempts + 1)


def check_function(name: str, function: object) -> Callable[..., Any]:
    """Return the plain function of a transaction, if it can be one."""
    plain = getattr(function, "function", function)
    if not callable(plain):
        raise InvalidRequest(f"transaction {name!r}: expected a function, then its arguments; got {plain!r}")
    inner: Any = plain
    while isinstance(inner, partial):
        inner = inner.func
    if _is_async(inner) or _is_async(getattr(inner, "__call__", None)):  # noqa: B004
        raise InvalidRequest(
            f"transaction {name!r}: {inner!r} is async, and nothing can be awaited while the transaction is open: "
            "give a sync function, and await in steps before and after it"
        )
    return plain


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def declared_options(name: str, function: object) -> StepOptions:
    """How a function was declared to be executed, if a transaction can be executed like that."""
    declared: StepOptions = getattr(function, "options", None) or DEFAULT_STEP_OPTIONS
    if declared.timeout is not None or declared.ephemeral:
        raise InvalidRequest(
            f"transaction {name!r}: its function is declared with timeout= or ephemeral=, which are for steps; "
            "a transaction has a time limit of its own, and is recorded with its own commit"
        )
    return declared
