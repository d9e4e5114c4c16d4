"""A definition: a registered function, and how its payload and its result are read and written."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core.checkpoint import Block, Finish
from holdfast.core.clock import Micros
from holdfast.core.codec import Codec
from holdfast.core.errors import ErrorRecord, InvalidRequest
from holdfast.core.intent import check_type, is_count
from holdfast.core.rules import CRASH_LIMIT
from holdfast.core.signature import Signature, result_codec
from holdfast.core.startable import Call
from holdfast.core.types import first_line
from holdfast.runner.looping import loop_codecs
from holdfast.runner.outcome import finish_of

if TYPE_CHECKING:
    from holdfast.runner.context import Context


class Definition:
    """What a worker needs to run a type: its function, and how payload and result are read and written."""

    is_strict = True
    """Whether its code has to ask for what is recorded in the recorded order, before it executes anything new."""

    def __init__(self, type: str, function: Callable[..., Any], *, skip: int, crash_limit: int = CRASH_LIMIT) -> None:
        self.type = check_type(type)
        """The name under which it is registered."""
        self.function = function
        """The plain function."""
        self.skip = skip
        self.signature = Signature(function, skip=skip)
        if not is_count(crash_limit):
            raise InvalidRequest(f"crash_limit={crash_limit!r}: it is a whole number of at least 1")
        self.crash_limit = crash_limit
        self.surviving_lines: set[str] = set()
        """Where its code swallows every attempt to close it, as far as a worker has reported it."""

        self._codecs: dict[object, Codec[Any]] = {}
        self._loop_codecs: dict[object, tuple[Codec[Any], Codec[Any]]] = {}

    @property
    def result(self) -> Codec[Any]:
        return self.signature.result

    @property
    def description(self) -> str:
        """What its docstring says in its first line."""
        return first_line(inspect.getdoc(self.function))

    def codec_of(self, function: Callable[..., Any]) -> Codec[Any]:
        """The codec of what a step's function returns; built once, also for a function that is made anew each time."""
        plain = function
        while isinstance(plain, partial):
            plain = plain.func
        # An object that is called is known by its class: it may have no hash, and there may be a new one each time.
        origin = getattr(plain, "__code__", plain if isinstance(plain, type) else type(plain))
        key = (origin, str(getattr(plain, "__annotations__", {}).get("return")))
        if key not in self._codecs:
            self._codecs[key] = result_codec(function)
        return self._codecs[key]

    def loop_codecs(self, body: Callable[..., Any]) -> tuple[Codec[Any], Codec[Any]]:
        """The codecs of the state and the value of a loop; built once for each body."""
        plain = body
        # The user's own: one that blocks is wrapped, and all wrappers are of one make.
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
        """The error a run has when it begins, if it is not one that blocked it."""
        return None

    def finish(self, root: asyncio.Task[Any], now: Micros) -> Finish | Block:
        """What the end of a run's coroutine means for the run."""
        return finish_of(self, root)

    def begin(self, context: Context, payload: str) -> Coroutine[Any, Any, Any]:
        """The coroutine of a run. Raises `InvalidRequest` if the payload does not fit the function."""
        args, kwargs = self.signature.decode(payload, f"payload of {self.type!r}")
        coroutine: Coroutine[Any, Any, Any] = self.function(context, *args, **kwargs)
        return coroutine

    def deliver(self, operation: Coroutine[Any, Any, Any]) -> Any:
        """What code of this definition gets when it calls a decorated step: something to await."""
        return operation

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[Any]:
        """A call of the function with these arguments, if it can be called with them."""
        self.signature.check(args, kwargs)
        return Call(self, args, kwargs)
