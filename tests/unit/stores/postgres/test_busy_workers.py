"""Requests of SQL producers are executed even if all slots are taken, or the workers are blocked or draining."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.stores.postgres import sql_requests
from tests.stage import complaints
from tests.unit.stores.postgres.database import Place

GUARD_SECONDS = 30.0

HINTS = {"hints": "", "no hints": "hints=off"}


@pytest.fixture(params=HINTS)
def url(request: pytest.FixtureRequest, place: Place, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store whose worker learns of requests by hints or by polling."""
    monkeypatch.setattr(sql_requests, "POLL_SECONDS", 0.2)
    monkeypatch.setattr(sql_requests, "POLL_WITHOUT_HINTS_SECONDS", 0.2)
    option = HINTS[request.param]
    return place.url + ("&" if "?" in place.url else "?") + option if option else place.url


async def until(is_reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_SECONDS):
        while not is_reached():
            await asyncio.sleep(0.01)


def state(place: Place, run_id: str) -> str:
    (found,) = place.all("select state from {schema}.runs where id = %s", run_id)
    return str(found)


def ask(place: Place, call: str, *values: object) -> Any:
    (answer,) = place.all("select {schema}." + call, *values)
    return answer


class Shop:
    """An application with one slot: `busy` keeps it until the gate is opened, `letters` wait for messages."""

    def __init__(self, url: str) -> None:
        self.hf = hf = Holdfast(url)
        self.is_busy = asyncio.Event()
        self.gate = asyncio.Event()
        self.thread_gate = threading.Event()
        self.was_cut_off = False

        @hf.workflow("busy")
        async def busy(ctx: Context) -> str:
            await ctx.step("hold", self._hold)
            return "done"

        @hf.workflow("blocking")
        async def blocking(ctx: Context) -> str:
            await ctx.step("hold", self._block)
            return "done"

        @hf.workflow("letters")
        async def letters(ctx: Context) -> Any:
            return await ctx.receive("go")

        self.busy, self.blocking, self.letters = busy, blocking, letters

    async def _hold(self) -> None:
        self.is_busy.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.was_cut_off = True
            raise

    def _block(self) -> None:
        self.hf_loop.call_soon_threadsafe(self.is_busy.set)
        assert self.thread_gate.wait(GUARD_SECONDS)

    async def begin(self, workflow: Any) -> str:
        """Start a run that takes the only slot, and wait until it has it."""
        self.hf_loop = asyncio.get_running_loop()
        run = await self.hf.start(workflow)
        async with asyncio.timeout(GUARD_SECONDS):
            await self.is_busy.wait()
        return str(run.id)


async def test_a_cancel_ends_the_run_that_holds_the_only_slot(place: Place, url: str) -> None:
    shop = Shop(url)
    async with shop.hf, shop.hf.worker(concurrency=1):
        run_id = await shop.begin(shop.busy)

        assert ask(place, "cancel(%s)", run_id) is True

        await until(lambda: shop.was_cut_off)
    assert state(place, run_id) == "cancelled"


async def test_a_message_and_an_event_arrive_while_no_slot_is_free(place: Place, url: str) -> None:
    shop = Shop(url)
    async with shop.hf, shop.hf.worker(concurrency=1):
        other = await shop.hf.start(shop.letters)
        await until(lambda: state(place, other.id) == "suspended")
        await shop.begin(shop.busy)

        ask(place, "send(%s, 'go', '1', 'm')", other.id)
        ask(place, "emit('rates', '2', 'e')")

        await until(lambda: place.all("select id from {schema}.message") == ["m"])
        await until(lambda: place.all("select id from {schema}.event") == ["e"])
        shop.gate.set()
        assert await other.result(timeout=GUARD_SECONDS) == 1


async def test_a_cancel_takes_effect_while_a_body_blocks_its_thread(place: Place, url: str) -> None:
    shop = Shop(url)
    async with shop.hf, shop.hf.worker(concurrency=1, threads=1):
        run_id = await shop.begin(shop.blocking)

        ask(place, "cancel(%s)", run_id)

        await until(lambda: state(place, run_id) == "cancelled")
        shop.thread_gate.set()
    assert state(place, run_id) == "cancelled"


async def test_a_cancel_takes_effect_while_a_body_blocks_the_event_loop(place: Place, url: str) -> None:
    """The run must not end as succeeded when the body returns."""
    hf = Holdfast(url)
    seen: list[str] = []

    def cancel_meanwhile(run_id: str) -> None:
        with place.again() as other:
            ask(other, "cancel(%s)", run_id)
            until_time = time.monotonic() + GUARD_SECONDS
            while state(other, run_id) != "cancelled" and time.monotonic() < until_time:
                time.sleep(0.01)
            seen.append(state(other, run_id))

    async def block(run_id: str) -> None:
        producer = threading.Thread(target=cancel_meanwhile, args=(run_id,))
        producer.start()
        producer.join()  # this loop does nothing else meanwhile

    @hf.workflow("rude")
    async def rude(ctx: Context) -> str:
        await ctx.step("block", block, ctx.run.id)
        return "done"

    async with hf, hf.worker(concurrency=1):
        run = await hf.start(rude)
        await until(lambda: bool(seen))
        await until(lambda: state(place, run.id) not in ("pending", "running"))

    assert (seen, state(place, run.id)) == (["cancelled"], "cancelled")


@pytest.mark.parametrize("types", [["letters"], ["unknown.*"]])
async def test_a_worker_executes_requests_for_types_it_does_not_have(place: Place, url: str, types: list[str]) -> None:
    shop = Shop(url)
    place.execute("insert into {schema}.intent (id, type) values ('r', 'elsewhere')")
    place.execute("update {schema}.runs set token = 1, state = 'suspended', ready_at = null")
    async with shop.hf, shop.hf.worker(types=types, concurrency=1):
        ask(place, "cancel('r')")

        await until(lambda: state(place, "r") == "cancelled")


async def test_a_cancel_takes_effect_while_a_worker_drains(place: Place, url: str) -> None:
    shop = Shop(url)
    async with shop.hf:
        worker = shop.hf.worker(concurrency=1, grace_seconds=GUARD_SECONDS)
        await worker.start()
        run_id = await shop.begin(shop.busy)
        stopping = asyncio.create_task(worker.stop())
        await until(lambda: worker.is_draining)

        ask(place, "cancel(%s)", run_id)

        await until(lambda: state(place, run_id) == "cancelled")
        async with asyncio.timeout(GUARD_SECONDS):
            await stopping  # the body was cancelled with its run
    assert shop.was_cut_off


async def test_a_busy_worker_finds_a_request_without_a_hint(place: Place, url: str) -> None:
    shop = Shop(url)
    async with shop.hf, shop.hf.worker(concurrency=1):
        await shop.begin(shop.busy)

        place.execute(
            """insert into {schema}.requests (body)
            values ('{"kind": "emit", "event": {"id": "e", "topic": "t", "payload": "1"}}')"""
        )

        await until(lambda: place.all("select id from {schema}.event") == ["e"])
        shop.gate.set()


async def test_a_busy_worker_retries_a_request_that_fails_for_a_while(
    place: Place, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(url)
    async with shop.hf, shop.hf.worker(concurrency=1):
        await shop.begin(shop.busy)
        place.execute("alter table {schema}.events rename to elsewhere")
        ask(place, "emit('t', '1', 'e')")
        await until(lambda: any("cannot carry out requests of SQL producers" in text for text in complaints(caplog)))

        place.execute("alter table {schema}.elsewhere rename to events")

        await until(lambda: place.all("select id from {schema}.event") == ["e"])
        await until(lambda: "carrying out requests of SQL producers works again" in caplog.text)
        shop.gate.set()


async def test_requests_stay_while_no_worker_runs(place: Place, url: str) -> None:
    shop = Shop(url)
    async with shop.hf:
        async with shop.hf.worker():
            pass
        ask(place, "emit('t', '1', 'e')")
        assert [run async for run in shop.hf.list()] == []  # the store is open and works
        assert place.all("select count(*) from {schema}.requests") == [1]
