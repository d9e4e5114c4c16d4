"""Transactions (`ctx.tx`): a function writes to the store's database, and its result is recorded in the same commit."""

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
    """A step that the store executes. It is a checkpoint of its run, so it also commits the facts fed before."""

    kind = EntryKind.TX
    __slots__ = ()


class Attempt:
    """One attempt at a transaction. The store commits the writes of the function and the entry together, or neither.

    The store calls it on one of its threads, with a connection of its driver, perhaps for several runs at once. It does
    not change the run: its entry is fed after the commit.
    """

    def __init__(self, call: TxCall, info: StepInfo, position: int, stamp: Micros) -> None:
        self.location = call.location
        self._call = call
        self._position = position
        self._stamp = stamp
        self.context = copy_context()
        self.context.run(current_step.set, info)

    def __call__(self, connection: Any, now: Micros) -> Entry:
        """Call the function and return the entry to record. Raises its error, or an error if its result is refused."""
        call = self._call
        # Run in a fresh copy of the context, because an attempt whose commit failed is made again.
        value = self.context.copy().run(call.function, connection, *call.args)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise Fatal(f"the function of transaction {self.location!r} returned an awaitable; pass a sync function")
        text, _ = call.codec.store(value, f"result of transaction {self.location!r}")
        entry = call.settled(EntryState.DONE, self._position, max(self._stamp, now), result=text)
        return replace(entry, attempts=call.attempts + 1)


def check_function(name: str, function: object) -> Callable[..., Any]:
    """Return the plain function of a transaction. Refuses an async function."""
    plain = getattr(function, "function", function)
    if not callable(plain):
        raise InvalidRequest(f"transaction {name!r}: expected a function, then its arguments; got {plain!r}")
    inner: Any = plain
    while isinstance(inner, partial):
        inner = inner.func
    if _is_async(inner) or _is_async(getattr(inner, "__call__", None)):  # noqa: B004
        raise InvalidRequest(
            f"transaction {name!r}: {inner!r} is async, and nothing can be awaited while the transaction is open: "
            "pass a sync function, and await in steps before and after it"
        )
    return plain


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def declared_options(name: str, function: object) -> StepOptions:
    """Return the declared options of a function. Refuses options that a transaction cannot have."""
    declared: StepOptions = getattr(function, "options", None) or DEFAULT_STEP_OPTIONS
    if declared.timeout is not None or declared.ephemeral:
        raise InvalidRequest(
            f"transaction {name!r}: its function is declared with timeout= or ephemeral=, which are for steps; "
            "a transaction has a time limit of its own, and is recorded with its own commit"
        )
    return declared
