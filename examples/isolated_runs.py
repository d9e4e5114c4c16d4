"""One namespace per run: ten orders in ten dictionaries, then in ten SQLite files, and a host that keeps dying.

No store is shared. A small host gives each run its namespace and waits for alarms. Between any two calls of a driver
the host may die; it then forgets everything but the namespaces. The results are the same.

Run it: python -m examples.isolated_runs
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Container
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, RunState, isolated

hf = Holdfast("memory://")  # only its workflows are used


@hf.step
async def charge(order: int) -> str:
    return f"charge-{order}"


@hf.step
async def ship(order: int, by: str) -> str:
    return f"parcel-{order} by {by}"


@hf.workflow("shop.order.v1")
async def fulfil(ctx: Context, order: int) -> str:
    await charge(order)
    carrier = await ctx.receive("carrier")
    await ctx.sleep(0.001)  # the warehouse packs
    return await ship(order, carrier)


class HostDied(BaseException):
    """The host has died between two calls of a driver."""


class Watched:
    """A driver that counts the calls of all runs, and lets the host die at some of them."""

    calls = 0
    fatal_calls: Container[int] = ()

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def call(*args: Any) -> Any:
            Watched.calls += 1
            if Watched.calls in Watched.fatal_calls:
                raise HostDied
            return await method(*args)

        return call


class Host:
    """Advances runs: when one starts, when mail came for it, and when its alarm is due."""

    def __init__(self, namespaces: dict[str, Any]) -> None:
        self._namespaces = namespaces
        self.results: dict[str, Any] = {}

    async def run(self) -> None:
        """Advance every run until all have ended."""
        while len(self.results) < len(self._namespaces):
            for run_id, namespace in self._namespaces.items():
                if run_id not in self.results:
                    await self._advance(run_id, Watched(namespace))
            await asyncio.sleep(self._seconds_to_next_alarm())

    async def _advance(self, run_id: str, driver: Any) -> None:
        number = int(run_id.removeprefix("order-"))
        end = await isolated.advance(driver, hf, run_id, type="shop.order.v1", payload={"order": number})
        if end.state.is_end:
            self.results[run_id] = end.result
        elif end.state is RunState.BLOCKED:  # it waits for an operator, and a host would tell one
            raise RuntimeError(f"{run_id} is blocked: {end.error}")
        elif end.alarm_at is None:
            # It waits for its carrier. In real life the warehouse writes this message.
            await driver.set(*isolated.message(f"{run_id}-carrier", "carrier", "bike" if number % 2 else "van"))

    def _seconds_to_next_alarm(self) -> float:
        alarms = [one.alarm_at for one in self._namespaces.values() if one.alarm_at is not None]
        return max(0.0, (min(alarms) - datetime.now(UTC)).total_seconds()) if alarms else 0.0


async def play(make: Callable[[str], Any], fatal_calls: Container[int] = ()) -> dict[str, Any]:
    """Play ten orders. After each death another host takes over, with nothing but the namespaces."""
    Watched.calls, Watched.fatal_calls = 0, fatal_calls
    namespaces = {f"order-{number}": make(f"order-{number}") for number in range(10)}
    while True:
        host = Host(namespaces)
        try:
            await host.run()
        except HostDied:
            # The real host would wait for the alarm of the run that it was advancing. This one asks every run at once.
            continue
        return host.results


async def main() -> None:
    expected = await play(lambda _: isolated.DictionaryNamespace())
    calls = Watched.calls
    # Three deaths per play: together, these plays die at every call. More deaths would hit the same run three times in
    # a row, and holdfast blocks a run during which the host dies again and again.
    apart = calls // 3 + 1
    for first in range(1, apart + 1):
        fatal_calls = range(first, calls + 1, apart)
        assert await play(lambda _: isolated.DictionaryNamespace(), fatal_calls) == expected, (
            f"it died at {fatal_calls}"
        )
    print(f"ten dictionaries: a host that dies at any of {calls} calls changes nothing")

    with tempfile.TemporaryDirectory() as folder:
        files: list[isolated.SqliteNamespace] = []

        def make(run_id: str) -> isolated.SqliteNamespace:
            files.append(isolated.SqliteNamespace(Path(folder) / f"{run_id}.db"))
            return files[-1]

        assert await play(make, [calls // 3, calls // 2]) == expected
        for file in files:
            file.close()
        print(f"{len(files)} files: the same results")
    print(expected["order-3"])


if __name__ == "__main__":
    asyncio.run(main())
