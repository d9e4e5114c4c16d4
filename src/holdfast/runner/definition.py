"""A definition: a registered function with the codecs of its payload and its result."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Container, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core.checkpoint import Block, Finish
from holdfast.core.clock import Micros
from holdfast.core.codec import Codec
from holdfast.core.errors import ErrorRecord, InvalidRequest
from holdfast.core.intent import check_type, is_count
from holdfast.core.model import Entry
from holdfast.core.rules import CRASH_LIMIT
from holdfast.core.signature import Signature, result_codec
from holdfast.core.startable import Call
from holdfast.core.types import first_line
from holdfast.runner import divergence
from holdfast.runner.divergence import Requested
from holdfast.runner.looping import loop_codecs
from holdfast.runner.outcome import finish_of

if TYPE_CHECKING:
    from holdfast.runner.context import Context


class Definition:
    """A registered function with everything that a worker needs to execute its runs."""

    is_strict = True
    """True if the code must ask for all recorded entries, in recorded order, before it executes anything new."""

    def __init__(self, type: str, function: Callable[..., Any], *, skip: int, crash_limit: int = CRASH_LIMIT) -> None:
        self.type = check_type(type)
        """The name under which it is registered."""
        self.function = function
        """The plain function."""
        self.skip = skip
        self._signature = Signature(function, skip=skip)
        if not is_count(crash_limit):
            raise InvalidRequest(f"crash_limit={crash_limit!r}: expected a whole number of at least 1")
        self.crash_limit: int = crash_limit
        self.surviving_lines: set[str] = set()
        """Lines of its code that swallow every attempt to close it and that a worker has reported already."""

        self._codecs: dict[object, Codec[Any]] = {}
        self._loop_codecs: dict[object, tuple[Codec[Any], Codec[Any]]] = {}

    @property
    def signature(self) -> Signature:
        """The parameters and the result of a run."""
        return self._signature

    @property
    def plan(self) -> tuple[str, ...]:
        """The names of the steps in order, if they are known before a run. Only a pipeline has them."""
        return ()

    @property
    def result(self) -> Codec[Any]:
        return self.signature.result

    @property
    def description(self) -> str:
        """The first line of the function's docstring."""
        return first_line(inspect.getdoc(self.function))

    def codec_of(self, function: Callable[..., Any]) -> Codec[Any]:
        """Return the codec for the result of a step's function. It is cached by code, not by function object."""
        plain = function
        while isinstance(plain, partial):
            plain = plain.func
        # A callable object is cached by its class: it may have no hash, and code may create a new one for each call.
        origin = getattr(plain, "__code__", plain if isinstance(plain, type) else type(plain))
        key = (origin, str(getattr(plain, "__annotations__", {}).get("return")))
        if key not in self._codecs:
            self._codecs[key] = result_codec(function)
        return self._codecs[key]

    def loop_codecs(self, body: Callable[..., Any]) -> tuple[Codec[Any], Codec[Any]]:
        """Return the codecs for the state and the value of a loop. They are cached per body."""
        plain = body
        # Use the user's own function: a blocking body is wrapped, and all wrappers share one code object.
        while isinstance(plain := inspect.unwrap(plain), partial):
            plain = plain.func
        key = (getattr(plain, "__code__", type(plain)), str(getattr(plain, "__annotations__", {})))
        if key not in self._loop_codecs:
            self._loop_codecs[key] = loop_codecs(body)
        return self._loop_codecs[key]

    @property
    def is_task(self) -> bool:
        return False

    @property
    def reason(self) -> ErrorRecord | None:
        """The error that a run has before its turn begins, if it is not one that blocked the run."""
        return None

    def finish(self, root: asyncio.Task[Any], now: Micros) -> Finish | Block:
        """Return the end of a run whose coroutine has ended."""
        return finish_of(self, root)

    def begin(self, context: Context, payload: str) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a run. Raises `InvalidRequest` if the payload does not fit the function."""
        args, kwargs = self.signature.decode(payload, f"payload of {self.type!r}")
        coroutine: Coroutine[Any, Any, Any] = self.function(context, *args, **kwargs)
        return coroutine

    def hints(self, recorded: Entry | None, requested: Requested | None, known: Container[str]) -> tuple[str, ...]:
        """Return lines that let runs with `recorded` and without `requested` continue with changed code."""
        return divergence.hints(recorded, requested, known)

    def deliver(self, operation: Coroutine[Any, Any, Any]) -> Any:
        """Return the value that a call of a decorated step has in this code: an awaitable."""
        return operation

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[Any]:
        """Return a call of the function with these arguments. Refuses arguments that do not fit its signature."""
        self.signature.check(args, kwargs)
        return Call(self, args, kwargs)
