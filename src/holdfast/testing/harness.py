"""A test harness: your workflows on a memory store and a virtual clock. A thirty-day sleep takes no time.

    async with Harness(hf) as h:
        assert await h.execute(checkout, order) == "paid"

Time passes in two cases. While the test waits for a run to end, time jumps to the next timer. And `advance` lets a
given time pass. `stub` replaces steps. With `always_replay`, the worker drops a run from memory after each of its
checkpoints and replays it. This finds workflow code that is not deterministic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from holdfast.app import Holdfast, session_of
from holdfast.core.clock import instant, micros, moment
from holdfast.core.errors import HoldfastError, InvalidRequest
from holdfast.core.ports import Pruned, Store
from holdfast.core.states import RunState
from holdfast.engine.answers import End, Replies, Results
from holdfast.engine.namespaces import Flows, RegisteredFlowInfo
from holdfast.runner.operation import StepCall
from holdfast.runner.registry import Registry
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import VirtualClock
from holdfast.worker.worker import Worker

T = TypeVar("T")

_QUIET_ROUNDS = 8
_ROUND_SECONDS = 0.0005
"""Maximum time that one round of the event loop takes off the patience. On a busy machine, bodies need the rounds."""
_STUCK_SECONDS = 0.005


class Harness(Holdfast):
    """A `Holdfast` in memory for tests, with a worker, a virtual clock and control over steps.

        async with Harness(hf) as h:
            assert await h.execute(checkout, "order-17") == "paid"

    `source` has the workflows. Time passes only while something waits for a run to end, straight to what is due next,
    or by `advance`. So a sleep of thirty days takes no time. `always_replay` replays each run after each of its
    checkpoints, which finds code that is not deterministic. `start` is the virtual time at which it begins.
    `patience_seconds` is explained at `settle`. `store` and `clock` replace the memory store and its clock.
    """

    def __init__(
        self,
        source: Holdfast | Registry | None = None,
        *,
        always_replay: bool = False,
        start: datetime = datetime(2030, 1, 1, tzinfo=UTC),
        clock: VirtualClock | None = None,
        store: Store | None = None,
        patience_seconds: float = 1.0,
    ) -> None:
        self.clock = clock or VirtualClock(start)
        """The virtual clock."""
        super().__init__("memory://", store=store or MemoryStore(clock=self.clock))
        session = session_of(self)
        session.make_results = lambda store: _ImpatientEnds(self, store)
        session.make_replies = lambda store: _ImpatientReplies(self, store)
        if source is not None:
            self.include(session_of(source).registry if isinstance(source, Holdfast) else source)
        self._always_replay = always_replay
        self._patience_seconds = patience_seconds
        self._stubs: dict[str, Callable[..., Any]] = {}
        self._worker: Worker | None = None
        self.executed: list[str] = []
        """Locations of all step bodies that were executed, in order."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            await self.start_worker()
        except BaseException:
            await super().__aexit__()  # `async with` closes nothing that it could not enter
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._worker is not None:
            await self._worker.stop(grace_seconds=0)
        await super().__aexit__()

    @cached_property
    def flows(self) -> Flows:
        """Register, list and read flows. Registrations have different instants, although virtual time stands still."""
        return _TickingFlows(self)

    # Steps

    def stub(
        self,
        name: str,
        function: Callable[..., Any] | None = None,
        *,
        returns: Any = None,
        raises: BaseException | None = None,
    ) -> None:
        """Replace the body of every step with this name by a function, a value it returns, or an error it raises."""
        if function is not None and (returns is not None or raises is not None):
            raise InvalidRequest(f"stub({name!r}): pass a function, returns= or raises=, but only one of them")

        def give(*_: Any) -> Any:
            if raises is not None:
                raise raises
            return returns

        self._stubs[name] = function or give

    def _body(self, call: StepCall) -> Callable[..., Any]:
        self.executed.append(call.location)
        name = call.location.rsplit("/", 1)[-1].split("#", 1)[0]
        return self._stubs.get(name, call.function)

    # Time

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return moment(self.clock.now())

    async def advance(self, length: float | timedelta) -> None:
        """Let seconds or a timedelta pass, and everything happen that is due by then."""
        until = self.clock.now() + micros(length)
        await self.settle()
        while (due := self.clock.next_due()) is not None and due <= until:
            await self._pass_to(due)
        await self._pass_to(until)

    async def settle(self) -> None:
        """Wait until nothing more happens without time passing. Hooks have got their signals then.

        A step body or hook that still runs after `patience_seconds` of real time is left alone: it may wait for virtual
        time, or for what the test does next.
        """
        loop = asyncio.get_running_loop()
        rounds, patience, before = 0, self._patience_seconds, loop.time()
        while rounds < _QUIET_ROUNDS:
            await asyncio.sleep(0)
            patience, before = patience - min(loop.time() - before, _ROUND_SECONDS), loop.time()
            is_quiet = self._worker is None or self._worker.is_quiet
            if not is_quiet:
                patience = self._patience_seconds
            elif not self._hooks.is_idle or (self._worker is not None and self._worker.is_executing):
                is_quiet = patience < 0
            rounds = rounds + 1 if is_quiet else 0
            if not is_quiet:
                await asyncio.sleep(0.0002)

    async def _pass_to(self, when: int) -> None:
        loop = asyncio.get_running_loop()
        for callback in self.clock.pass_to(when):
            loop.call_soon(callback)
        await self.settle()

    async def skip(self) -> bool:
        """Let time pass to what is due next. Returns False if nothing is due."""
        due = self.clock.next_due()
        if due is None:
            return False
        await self._pass_to(due)
        return True

    async def pass_until(self, waiting: asyncio.Future[T], run_id: str) -> T:
        """Let time pass until a future that depends on a run is done. Raise if the run becomes blocked meanwhile."""
        blocked_before = await self._blocks(run_id)
        try:
            while not waiting.done():
                await self.settle()
                if not waiting.done() and await self._blocks(run_id) > blocked_before:
                    raise HoldfastError(f"{await self.run(run_id).explain()} ({run_id})")
                if not waiting.done() and not await self.skip():
                    await asyncio.wait([waiting], timeout=_STUCK_SECONDS)
            return waiting.result()
        finally:
            waiting.cancel()

    async def _blocks(self, run_id: str) -> int:
        """Return how many times in a row the run was blocked. Waiting for a blocked run could take forever."""
        details = await session_of(self).store.get(run_id)
        if details is None or details.run.state is not RunState.BLOCKED or details.run.error is None:
            return 0
        return max(1, details.run.error.attempts)

    async def prune(self) -> Pruned:
        """Remove up to 1,000 things that are older than their retention, as workers do from time to time."""
        return await session_of(self).store.prune(1_000)

    # The worker

    async def start_worker(self) -> Worker:
        """Start a worker, for example after `crash_worker`. `async with` starts the first one."""
        self._worker = self._local_workers.make(
            clock=self.clock,
            poll=None,
            prune_every=None,
            has_heart=False,
            always_replay=self._always_replay,
            body_of=self._body,
        )
        await self._worker.start()
        return self._worker

    async def crash_worker(self) -> None:
        """Kill the worker like a process that dies. Its runs wait until their leases end."""
        if self._worker is not None:
            await self._worker.kill()
            self._worker = None

    async def stop_worker(self) -> None:
        """Stop the worker gracefully, as a deploy does."""
        if self._worker is not None:
            await self._worker.stop()
            self._worker = None


class _TickingFlows(Flows):
    """Flows that let virtual time pass to the instant of a registration, so that runs take it from now on."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(session_of(harness))
        self._clock = harness.clock

    async def register(self, text_or_path: str | Path, *, type: str, by: str = "") -> RegisteredFlowInfo:
        registered = await super().register(text_or_path, type=type, by=by)
        loop = asyncio.get_running_loop()
        for callback in self._clock.pass_to(instant(registered.registered_at)):
            loop.call_soon(callback)
        return registered


class _ImpatientEnds(Results):
    """Results that let virtual time pass while a caller waits for a run to end."""

    def __init__(self, harness: Harness, store: Store) -> None:
        super().__init__(store)
        self._harness = harness

    async def wait(self, run_id: str, *, is_fresh: bool = False) -> End:
        waiting = asyncio.ensure_future(super().wait(run_id, is_fresh=is_fresh))
        return await self._harness.pass_until(waiting, run_id)


class _ImpatientReplies(Replies):
    """Replies that let virtual time pass while a caller waits for one."""

    def __init__(self, harness: Harness, store: Store) -> None:
        super().__init__(store)
        self._harness = harness

    async def wait(self, run_id: str, message_id: str) -> str | None:
        waiting = asyncio.ensure_future(super().wait(run_id, message_id))
        return await self._harness.pass_until(waiting, run_id)
