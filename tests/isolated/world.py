"""A world of isolated runs: a host with one namespace per run, alarms, deliveries, and a process that may die."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

from holdfast import Holdfast, isolated
from holdfast.core.clock import instant, moment
from holdfast.core.questions import Details
from holdfast.isolated.driver import CheckedDriver, NamespaceDriver
from holdfast.isolated.loading import Contents, Loader
from holdfast.testing.clock import VirtualClock
from tests.isolated.faulty_namespace import CallCounter, FaultyNamespace, ProcessDied, When


class AlarmedDriver(NamespaceDriver, Protocol):
    """A driver whose alarm the host can read."""

    @property
    def alarm_at(self) -> datetime | None: ...


async def contents_of(driver: NamespaceDriver, run_id: str) -> Contents:
    """Return everything in a namespace."""
    loader = Loader(CheckedDriver(driver), run_id)
    await loader.outline()
    return await loader.rest()


class World:
    """The host. What it keeps besides the namespaces is who the parent of each run is and what starts it.

    It advances one run at a time. After the process died it advances every run, because it knows nothing else.
    """

    def __init__(
        self,
        hf: Holdfast,
        *,
        make: Callable[[str], AlarmedDriver] = lambda _: isolated.DictionaryNamespace(),
        crashes: dict[int, When] | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.counter = CallCounter(crashes or {})
        self.died = 0
        self.ends: dict[str, isolated.Advanced] = {}
        self._hf = hf
        self._make = make
        self._plain: dict[str, AlarmedDriver] = {}
        self._faulty: dict[str, FaultyNamespace] = {}
        self._starts: dict[str, dict[str, Any]] = {}
        self._parents: dict[str, str] = {}
        self._poked: dict[str, None] = {}

    # What the outside does

    def start(self, run_id: str, type: str, payload: dict[str, Any], **options: Any) -> None:
        """Start a run in a namespace of its own."""
        self._open(run_id, {"type": type, "payload": payload, **options})

    async def mail(self, run_id: str, written: tuple[bytes, bytes]) -> None:
        """Write mail into a namespace. It does not count as a call of the host: senders retry on their own."""
        await self._plain[run_id].set(*written)
        self._poked[run_id] = None

    @property
    def now(self) -> datetime:
        return moment(self.clock.now())

    async def settle(self) -> None:
        """Advance runs until nothing is left to do before the next alarm. A dead process starts again."""
        while self._poked:
            try:
                await self._advance(next(iter(self._poked)))
            except ProcessDied:
                self.died += 1
                self._poked |= dict.fromkeys(self._plain)

    def skip(self) -> bool:
        """Let time pass to the next alarm. Return False if there is none."""
        alarms = {run_id: at for run_id, one in self._plain.items() if (at := one.alarm_at) is not None}
        if not alarms:
            return False
        due = min(alarms.values())
        self.clock.pass_to(instant(due))
        self._poked |= {run_id: None for run_id, at in alarms.items() if at <= self.now}
        return True

    async def play(self) -> None:
        """Let everything happen until no run has an alarm."""
        await self.settle()
        while self.skip():
            await self.settle()

    # What it finds

    async def contents(self, run_id: str) -> Contents:
        return await contents_of(self._plain[run_id], run_id)

    async def details(self) -> tuple[list[Details], dict[str, list[Any]]]:
        """Return every run with its waits and values, and the histories."""
        found, histories = [], {}
        for run_id in self._plain:
            one = await self.contents(run_id)
            if one.run is not None:
                found.append(Details(run=one.run, waits=one.waits, values=one.values))
                histories[run_id] = list(one.entries.values())
        return found, histories

    # Hosting

    def _open(self, run_id: str, start: dict[str, Any]) -> None:
        if run_id not in self._plain:
            self._plain[run_id] = self._make(run_id)
            self._faulty[run_id] = FaultyNamespace(self._plain[run_id], self.counter)
            self._starts[run_id] = start
        self._poked[run_id] = None

    async def _advance(self, run_id: str) -> None:
        driver = self._faulty[run_id]
        end = await isolated.advance(driver, self._hf, run_id, clock=self.clock, **self._starts[run_id])
        for item in end.outbox:
            await self._deliver(run_id, item)
        await isolated.delivered(driver, [item.id for item in end.outbox])
        if end.state.is_end:
            self.ends[run_id] = end
            if (parent := self._parents.get(run_id)) is not None:
                await self._write(
                    parent,
                    isolated.child_ended(run_id, state=end.state, result=end.result, error=end.error, at=self.now),
                )
        # Last, so that a process that dies before this does it all again.
        self._poked.pop(run_id, None)

    async def _deliver(self, run_id: str, item: isolated.OutboxItem) -> None:
        to = item.run_id
        match item.kind:
            case "start" if to is not None:
                self._parents[to] = run_id
                self._open(to, {"start": item})
            case "cancel" if to is not None:
                await self._write(to, isolated.cancel(item.id, item.name, at=self.now))
            case "send" if to in self._plain:
                await self._write(to, isolated.message(item.id, item.name, item.payload, at=self.now))
            case "emit":
                for other in [other for other in self._plain if other != run_id]:
                    await self._write(other, isolated.event(item.id, item.name, item.payload, at=self.now))
            case _:
                pass

    async def _write(self, run_id: str, written: tuple[bytes, bytes]) -> None:
        await self._faulty[run_id].set(*written)
        if run_id not in self.ends:
            self._poked[run_id] = None
