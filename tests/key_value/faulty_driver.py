"""A driver with faults: a planned call fails before or after it, or loses its answer and is repeated.

A store call makes several driver calls, so a fault between two of them leaves an operation half done. Only calls inside
`of_worker` are counted and can fail, like those of `holdfast.testing.faults`. The other ones belong to the process that
survives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeVar

from msgspec.structs import replace

from holdfast.core.checkpoint import ClaimRequest
from holdfast.core.clock import Micros
from holdfast.core.errors import StoreUnavailable
from holdfast.core.model import Holding
from holdfast.stores.kv.driver import Answers, ClaimAnswer, Committed, Driver, Gain, Part, Read, Renewed
from tests.key_value.wrapped_driver import WrappedDriver

A = TypeVar("A")

DriverFault = Literal["crash before", "crash after", "fail before", "fail after", "repeat"]
"""The fault at a call.

`crash`: the worker never reaches the driver again, until `revive`. `fail`: this call raises. `before`: the engine does
not carry out the call. `after`: it does, and only the answer is lost. `repeat`: the answer is lost, and the driver
repeats the call by itself, as every driver may.
"""

_is_of_worker: ContextVar[bool] = ContextVar("is_of_worker", default=False)


@contextmanager
def of_worker() -> Iterator[None]:
    """Count the driver calls of this block as those of a worker."""
    token = _is_of_worker.set(True)
    try:
        yield
    finally:
        _is_of_worker.reset(token)


class DriverFaults:
    """The planned faults of a driver, by the numbers of a worker's calls, which begin with 1."""

    def __init__(self, faults: Mapping[int, DriverFault]) -> None:
        self.calls: list[str] = []
        """The counted calls so far, by name."""
        self.crashed: Callable[[], None] = lambda: None
        """Called at each crash."""
        self._planned = dict(faults)
        self._is_cut_off = False

    @property
    def left(self) -> Sequence[int]:
        """The numbers of the planned faults that have not happened."""
        return sorted(self._planned)

    def revive(self) -> None:
        """Let calls through again after a crash."""
        self._is_cut_off = False

    def begin(self, name: str) -> DriverFault | None:
        """Count a call. Return the fault that happens after it, if any. Raises the one that happens before it."""
        if not _is_of_worker.get():
            return None
        if self._is_cut_off:
            raise StoreUnavailable(f"{name}: this worker has crashed")
        self.calls.append(name)
        fault = self._planned.pop(len(self.calls), None)
        if fault is not None and fault.startswith("crash"):
            self._is_cut_off = True
            self.crashed()
        if fault in ("crash before", "fail before"):
            raise StoreUnavailable(f"{name}: planned fault before driver call {len(self.calls)}")
        return fault


class FaultyDriver(WrappedDriver):
    """A driver whose calls fail as planned."""

    def __init__(self, inner: Driver, faults: DriverFaults) -> None:
        super().__init__(inner)
        self._faults = faults

    async def load(self, reads: Sequence[Read]) -> Answers:
        return await self._through("load", lambda _: self.inner.load(reads))

    async def commit(self, parts: Sequence[Part | Gain], hint: bytes = b"") -> Committed:
        async def call(is_again: bool) -> Committed:
            committed = await self.inner.commit(parts, hint)
            return committed._replace(is_repeat=committed.is_repeat or is_again)

        return await self._through("commit", call)

    async def claim(self, request: ClaimRequest) -> ClaimAnswer | None:
        def call(is_again: bool) -> Awaitable[ClaimAnswer | None]:
            return self.inner.claim(replace(request, is_repeat=True) if is_again else request)

        return await self._through("claim", call)

    def renew(
        self, worker: str, record: bytes, holdings: Sequence[Holding], lease: Micros
    ) -> tuple[Micros, list[Renewed | None]]:
        fault = self._faults.begin("renew")
        answer = self.inner.renew(worker, record, holdings, lease)
        if fault == "repeat":
            return self.inner.renew(worker, record, holdings, lease)
        return _received("renew", answer, fault)

    async def _through(self, name: str, call: Callable[[bool], Awaitable[A]]) -> A:
        """Carry out a call with its fault. `call` gets True for a repetition."""
        fault = self._faults.begin(name)
        answer = await call(False)  # noqa: FBT003
        if fault == "repeat":
            return await call(True)  # noqa: FBT003
        return _received(name, answer, fault)


def _received(name: str, answer: A, fault: DriverFault | None) -> A:
    if fault is not None:
        raise StoreUnavailable(f"{name}: carried out, but the answer was lost")
    return answer
