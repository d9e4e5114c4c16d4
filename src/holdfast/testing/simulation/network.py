"""A network between one process and the store. Calls and answers are slow, get lost, and fail.

A call travels to the store, the store carries it out, and the answer travels back. The store carries out a call even if
the sender is frozen or dead by then. The network never changes an answer: the sender gets the store's answer or an
outage.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, cast

from holdfast.core.errors import StoreUnavailable
from holdfast.core.news import Hint
from holdfast.core.ports import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.calls import StoreCall
from holdfast.testing.simulation.loop import Process, SimulatedLoop, settle
from holdfast.testing.simulation.watch import CLAIMING, Watch

LEASE_SECONDS = 60.0
DELAY_SECONDS = 1.5 * LEASE_SECONDS
FREEZE_SECONDS = 2 * LEASE_SECONDS
OUTAGE_SECONDS = 5.0
"""Time until a process notices that no answer comes."""

FAULTS = ("lose", "deafen", "delay", "freeze", "crash before", "crash after")
"""Faults of a call.

- `lose`: The call is lost.
- `deafen`: The answer is lost.
- `delay`: The call arrives only after the lease has expired.
- `freeze`: The sender freezes for longer than a lease before it gets the answer.
- `crash before`, `crash after`: The sender dies before or after the store carries out the call.
"""

LOOKING = frozenset({"claim", "due_schedules", "ends", "catalog"})
"""Names of calls that processes repeat all the time and that mostly return nothing."""

Faults = dict[tuple[str, int], str]
"""Faults of a process's calls, by the name of the call and its number among the calls of that name."""


class Surroundings(Protocol):
    """The parts of the world that a network needs."""

    loop: SimulatedLoop
    watch: Watch

    def note(self, process: Process | None, what: str, *, is_news: bool = True) -> None: ...

    def kill(self, process: Process) -> None: ...

    def freeze(self, process: Process, seconds: float) -> None: ...

    def reporting(self) -> AbstractContextManager[None]: ...


class Network:
    """The connection of one process to the store. Faults are planned. Delays are random, from a seed."""

    database = None
    transfer = None

    def __init__(
        self,
        world: Surroundings,
        process: Process,
        store: MemoryStore,
        chance: random.Random,
        *,
        faults: Faults,
        slowness: float,
        deafness: float,
        flushes: int = 1,
    ) -> None:
        self.concurrent_checkpoints = flushes
        self._world = world
        self._process = process
        self._store = store
        self._chance = chance
        self._faults = faults
        self._slowness = slowness
        self._deafness = deafness
        self._calls: Counter[str] = Counter()
        self._is_closed = False
        self.leased = asyncio.Event()
        """Set when a call that may lease runs to this process was carried out."""

    @property
    def as_store(self) -> Store:
        return cast("Store", self)

    def shut(self) -> None:
        """Refuse all further calls: the simulation is over, and its clean-up must not change the store."""
        self._is_closed = True

    def pause(self) -> float:
        """Return how many seconds a call or answer travels: mostly almost none, sometimes long."""
        return self._chance.choice((0.0, 0.001, 0.001, 0.01, self._chance.random() * self._slowness))

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self._ask, name)

    def for_another_loop(self) -> Store:
        return self.as_store

    def schema(self) -> Any:
        return self._store.schema()

    # Calls

    async def _ask(self, member: str, *args: Any, **options: Any) -> Any:
        call = StoreCall.of(member, *args, **options)
        fault = self._next_fault(call.name)
        answer = self._world.loop.create_future()
        delay = self.pause() + (DELAY_SECONDS if fault == "delay" else 0)
        self._world.loop.in_name_of(None, delay, self._arrive, answer, call, fault)
        return await answer

    def _next_fault(self, name: str) -> str | None:
        if self._is_closed:
            raise StoreUnavailable(f"{name}: the simulation is over")
        self._calls[name] += 1
        fault = self._faults.pop((name, self._calls[name]), None)
        if fault == "freeze":
            self._world.freeze(self._process, FREEZE_SECONDS)
        return fault

    def _arrive(self, answer: asyncio.Future[Any], call: StoreCall, fault: str | None) -> None:
        """Act as the store: carry out a call and send the answer back."""
        value, error = self._suffer(fault, call)
        if call.name in CLAIMING:
            self._world.loop.in_name_of(self._process, 0, self.leased.set)
        wait = OUTAGE_SECONDS if fault in ("lose", "deafen") else self.pause()
        self._world.loop.in_name_of(self._process, wait, settle, answer, value, error)

    def _suffer(self, fault: str | None, call: StoreCall) -> tuple[Any, Exception | None]:
        """Carry out a call as far as its fault allows. Return the answer that the sender gets if it is alive."""
        if fault == "crash before":
            self._world.kill(self._process)
        if fault in ("lose", "crash before"):
            self._world.note(self._process, f"{call.name} did not arrive")
            return None, StoreUnavailable(f"{call.name}: lost on the way")
        value, error = self._carry_out(call)
        if fault in ("deafen", "crash after"):
            value, error = None, StoreUnavailable(f"{call.name}: carried out, but the answer was lost")
            self._world.note(self._process, f"{call.name}: its answer was lost")
        if fault == "crash after":
            self._world.kill(self._process)
        return value, error

    def _carry_out(self, call: StoreCall) -> tuple[Any, Exception | None]:
        watch = self._world.watch
        name = call.name
        stale = watch.stale(name, call.args)
        value, error = None, None
        try:
            value = _finished(getattr(self._store, call.member)(*call.args, **call.options))
        except Exception as refusal:  # noqa: BLE001 - the caller gets it
            error = refusal
        told = f": {error}" if error is not None else f" {_told(name, call.args, value)}"
        self._world.note(self._process, name + told, is_news=name not in LOOKING or told != " ")
        with self._world.reporting():
            watch.wrote(name, call.args)
            watch.check_stale(stale, name)
        return value, error

    def renew(self, *args: Any) -> Any:
        """Renew leases. This call is synchronous: workers make it in an executor, where the loop adds the pauses."""
        call = StoreCall.of("renew", *args)
        fault = self._next_fault(call.name)
        if fault == "delay":  # a blocking call cannot wait that long: the sender gives up, and the call arrives later
            self._world.loop.in_name_of(None, DELAY_SECONDS, self._carry_out, call)
            raise StoreUnavailable("renew: no answer yet")
        value, error = self._suffer(fault, call)
        if error is not None:
            raise error
        return value

    # Hints

    def listen(self, listener: Callable[[Hint], None]) -> Callable[[], None]:
        def hear(hint: Hint) -> None:
            if self._chance.random() >= self._deafness:
                self._world.loop.in_name_of(self._process, self.pause(), listener, hint)

        return self._store.listen(hear)


def _finished(call: Any) -> Any:
    """Return the answer of a memory store call, which never waits."""
    if not asyncio.iscoroutine(call):
        return call
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the memory store waited for something")


def _told(name: str, args: tuple[Any, ...], value: Any) -> str:
    """Summarise a call for the journal."""
    match name:
        case "checkpoint":
            return ", ".join(
                f"{one.run_id}@{one.token} {type(one.next).__name__} +{len(one.entries)}"
                + (" LOST" if verdict.is_lost else "")
                for one, verdict in zip(args[0], value.verdicts, strict=True)
            )
        case "claim":
            return ", ".join(f"{lease.run.id}@{lease.run.token}" for lease in value.leases)
        case "renew":
            return ", ".join(f"{one.run_id}@{one.token}" for one in args[1])
        case "create":
            return ", ".join(f"{made.run_id}{'' if made.created else ' (known)'}" for made in value.runs)
        case "send":
            return ", ".join(f"{message.name} {message.id}" for message in args[0].messages)
        case "emit":
            return ", ".join(event.topic for event in args[0].events)
        case "control":
            return f"{type(args[0]).__name__} {args[0].run_id}: {value}"
        case _:
            return ""
