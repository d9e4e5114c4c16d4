"""The storm: workers and producers under load, regular disturbances, then calm, and the evidence."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

from holdfast import StoreUnavailable
from holdfast.app import session_of
from holdfast.core.questions import CountLeases, CountRuns, ListSchedules
from holdfast.testing.patience import GUARD_SECONDS
from tests.chaos import flows, load
from tests.chaos.display import Display
from tests.chaos.evidence import Evidence, Fate, Remark
from tests.chaos.jobs import KINDS
from tests.chaos.journal import Journal
from tests.chaos.places import Blow, Place
from tests.chaos.plan import Plan
from tests.chaos.witness import Witness
from tests.faults.app import insist
from tests.process.crew import COMPLAINTS, Crew, Hand, is_stopped

GRACE_SECONDS = 2.0
CONCURRENCY = 100
SCHEDULE = "tick"
LONGER = (1.1, 1.6)
"""Number of leases between two stops of a worker."""
LOSS = "confirmed writes were lost"
"""What a worker logs if the store has lost what it had confirmed."""


class Storm:
    """One storm on one place. Call `rage`, then use the crew's `hf`."""

    def __init__(self, place: Place, plan: Plan, display: Display) -> None:
        self.place = place
        self.plan = plan
        self.crew = Crew(place.folder, url=place.url, lease=plan.lease_seconds)
        self.crew.hf.include(load.workflows)
        self.witness = Witness(self.crew.hf, plan.seed)
        self.blows: Counter[str] = Counter()
        self._display = display
        self._chance = random.Random(plan.seed)
        self._producers: dict[int, Hand] = {}
        self._launched = 0
        self._stops: dict[int, list[tuple[float, float]]] = {}
        self._begun = time.monotonic()

    async def rage(self) -> Evidence:
        """Run everything from the first start to the last check."""
        try:
            await self._prepare()
            watching = asyncio.create_task(self._watch())
            await self._disturb()
            await self._calm()
            seconds = time.monotonic() - self._begun
            watching.cancel()
            await asyncio.wait([watching])
            return await self._evidence(seconds)
        finally:
            self.crew.dismiss()
            for producer in self._producers.values():
                if producer.is_alive:
                    producer.kill()

    # Before

    async def _prepare(self) -> None:
        hf = self.crew.hf
        await session_of(hf).open()
        self.place.prepare(hf)
        for type, count in load.CONCURRENCY.items():
            await hf.types.set(type, concurrency=count)
        for type, (tag, count) in load.PER_KEY.items():
            await hf.types.set(type, per_key={tag: count})
        for type, rate in load.RATES.items():
            await hf.types.set(type, rate=rate)
        await hf.topics.set(load.QUEUES, mode="queue")
        for type, text in flows.TEXTS.items():
            await hf.flows.register(text, type=type)
        if not self.plan.kinds:
            await hf.schedules.put(SCHEDULE, load.tick, self.crew.book, every=load.TICK_SECONDS, catch_up="all")
        self._refill()
        for slot in range(self.plan.producers):
            self._produce(slot)
        await self._until(self._has_begun)
        self._begun = time.monotonic()

    async def _has_begun(self) -> bool:
        await self.witness.check()
        return len(self._ready()) >= min(2, self.plan.workers)

    def _refill(self) -> None:
        """Replace each process that died or was asked to stop."""
        for slot, producer in self._producers.items():
            if not producer.is_alive and not self.plan.most:
                self._produce(slot)
        there = sum(hand.is_alive and not hand.is_leaving for hand in self.crew.hands)
        for _ in range(self.plan.workers - there):
            options = {"lease": self.plan.lease_seconds, "grace": GRACE_SECONDS, "concurrency": CONCURRENCY}
            number = len(self.crew.hands)
            self.crew.hands.append(
                Hand(number, self.place.way, self.crew.folder, options, program="tests.chaos.worker")
            )

    def _produce(self, slot: int, *, closing: bool = False) -> None:
        """Replace a producer that died; the new one continues its jobs."""
        options = {
            "slot": slot,
            "seed": self.plan.seed,
            "pace": self.plan.pace,
            "most": self.plan.most,
            "kinds": ",".join(self._kinds()),
            "closing": int(closing),
            "book": self.crew.book,
            "journal": self._journal(slot).path,
        }
        self._producers[slot] = Hand(
            self._launched, self.place.way, self.crew.folder, options, program="tests.chaos.producer", role="producer"
        )
        self._launched += 1

    def _kinds(self) -> Sequence[str]:
        return self.plan.kinds or sorted(KINDS.keys() - self.place.kinds_left_out)

    def _journal(self, slot: int) -> Journal:
        return Journal(self.crew.folder / f"journal-{slot}")

    # During the storm

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.witness.watch())
            group.create_task(self._show_progress())

    async def _show_progress(self) -> None:
        while True:
            seconds = time.monotonic() - self._begun
            self._display.show(seconds, self._accepted(), self.witness.ended, self.blows, self.witness.slowest)
            await asyncio.sleep(self._display.pause_seconds)

    async def _disturb(self) -> None:
        blows = self._all_blows()
        names, weights = list(blows), [blow.weight for blow in blows.values()]
        until = time.monotonic() + self.plan.seconds
        async with asyncio.TaskGroup() as group:
            while (left := until - time.monotonic()) > 0 or self._is_little():
                spread = 1.0 if self.plan.is_steady else self._chance.uniform(0.5, 1.5)
                pause = self.plan.pause_seconds * spread
                await asyncio.sleep(min(left, pause) if left > 0 else pause)
                hands = self._ready()
                if len(hands) < 2:
                    continue  # another worker has to take over
                (name,) = self._chance.choices(names, weights)
                if name == "stop":
                    group.create_task(self._stop(self._chance, hands))
                else:
                    await blows[name].strike(self._chance, hands)
                self.blows[name] += 1
                self._note_deaths()
                self._refill()

    def _is_little(self) -> bool:
        """True if too little has happened so far, on a busy machine."""
        return self.blows.total() < self.plan.least_blows or self._accepted() < self.plan.least_runs

    def _accepted(self) -> int:
        return sum(self._journal(slot).count(b'"what":"start"') for slot in self._producers)

    def _all_blows(self) -> Mapping[str, Blow]:
        all_blows = {
            "kill": Blow(5, self._kill),
            "stop": Blow(1.5, self._stop),
            "term": Blow(1.5, self._term),
            "kill producer": Blow(1, self._kill_producer),
            **self.place.blows(),
        }
        return {name: blow for name, blow in all_blows.items() if not self.plan.blows or name in self.plan.blows}

    def _ready(self) -> list[Hand]:
        """Workers that are known to the store and were not disturbed yet."""
        for hand in self.crew.hands:
            hand.worker_id = self.witness.known.get(hand.pid, "")
        stopped = {number for number, stops in self._stops.items() if stops[-1][1] == float("inf")}
        return [
            hand
            for hand in self.crew.hands
            if hand.is_alive and not hand.is_leaving and hand.worker_id and hand.number not in stopped
        ]

    def _note_deaths(self) -> None:
        self.witness.killed = {h.worker_id: h.killed_at for h in self.crew.hands if h.worker_id and h.killed_at}

    async def _kill(self, chance: random.Random, hands: Sequence[Hand]) -> None:
        await asyncio.to_thread(chance.choice(hands).kill)

    async def _term(self, chance: random.Random, hands: Sequence[Hand]) -> None:
        chance.choice(hands).leave()

    async def _stop(self, chance: random.Random, hands: Sequence[Hand]) -> None:
        """Freeze a worker for longer than a lease: all its later writes come too late."""
        hand = chance.choice(hands)
        stops = self._stops.setdefault(hand.number, [])
        stops.append((time.time(), float("inf")))
        hand.signal(signal.SIGSTOP)
        try:
            await self._until(lambda: _stands(hand))
            with self.place.outage() if self.place.waits_for(hand) else nullcontext():
                await asyncio.sleep(self.plan.lease_seconds * chance.uniform(*LONGER))
        finally:
            hand.signal(signal.SIGCONT)
            stops[-1] = (stops[-1][0], time.time())

    async def _kill_producer(self, chance: random.Random, hands: Sequence[Hand]) -> None:
        slot = chance.choice(sorted(self._producers))
        await asyncio.to_thread(self._producers[slot].kill)
        self._produce(slot)

    # After

    async def _calm(self) -> None:
        """Let producers finish, and wait until nothing is left to do."""
        await asyncio.to_thread(self.place.heal)
        if not self.plan.kinds:
            await insist(partial(self.crew.hf.schedules.pause, SCHEDULE))
        for slot in sorted(self._producers):
            await self._close(slot)
        waiting = sum(
            one.what == "start" and one.expect is not None and one.expect.states == ("suspended",)
            for slot in self._producers
            for one in {one.run_id: one for one in self._journal(slot) if one.what == "start"}.values()
        )
        await self._until(partial(self._is_quiet, waiting))
        for hand in self.crew.hands:
            if hand.is_alive and not hand.is_leaving:
                hand.leave()
        await self._until(self._are_gone)

    async def _close(self, slot: int) -> None:
        if self._producers[slot].is_alive and not self.plan.most:
            self._producers[slot].leave()
        for _ in range(3):
            await self._until(lambda: self._has_left(slot))
            if self._producers[slot].process.poll() == 0:
                return
            self._produce(slot, closing=not self.plan.most)
        self.witness.remarks.append(Remark("processes", f"producer {slot} cannot finish: {self._said(slot)}"))

    async def _has_left(self, slot: int) -> bool:
        return not self._producers[slot].is_alive

    def _said(self, slot: int) -> str:
        return self._producers[slot].log[-2_000:]

    async def _is_quiet(self, waiting: int) -> bool:
        try:
            counts = (await session_of(self.crew.hf).store.stats(CountRuns())).values()
            held = await session_of(self.crew.hf).store.stats(CountLeases())
        except StoreUnavailable:
            return False
        live = sum(number for states in counts for state, number in states.items() if not state.is_end)
        return live == waiting and not held

    async def _are_gone(self) -> bool:
        return not any(hand.is_alive for hand in self.crew.hands)

    async def _until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a limited time; an unmet condition shows in the evidence."""
        limit = time.monotonic() + GUARD_SECONDS
        while not await is_so() and time.monotonic() < limit:
            await asyncio.sleep(0.05)

    async def _evidence(self, seconds: float) -> Evidence:
        store = session_of(self.crew.hf).store
        for hand in self.crew.hands:
            hand.worker_id = hand.worker_id or self.witness.known.get(hand.pid, "")
        self.witness.remarks += await self.witness.leftovers()
        self.witness.remarks += self._complaints()
        deposits = self.place.deposits(self.crew.hf)
        schedules = await store.catalog(ListSchedules(name=SCHEDULE))
        return Evidence(
            seconds=seconds,
            lease_seconds=self.plan.lease_seconds,
            accepted=[one for slot in sorted(self._producers) for one in self._journal(slot)],
            stories=await self.witness.stories(),
            deeds=self.crew.ledger.all(),
            fates=[self._fate(hand) for hand in self.crew.hands],
            outages=self.place.outages,
            sightings=self.witness.sightings,
            delays=sorted(self.witness.delays, key=lambda delay: delay.until),
            remarks=self.witness.remarks,
            checks=self.witness.checks,
            deposits=deposits.made,
            total=deposits.total,
            schedule=schedules[0] if schedules else None,
            blows=dict(self.blows),
        )

    def _fate(self, hand: Hand) -> Fate:
        stopped = tuple(self._stops.get(hand.number, ()))
        return Fate(hand.pid, hand.worker_id, hand.killed_at, hand.left_at, stopped)

    def _complaints(self) -> list[Remark]:
        """Return workers that wrote unexpected log lines, or ended without a stop."""
        texts = []
        for hand in self.crew.hands:
            code = hand.process.poll()
            lines = hand.log.splitlines()
            if not hand.worker_id and lines and "StoreUnavailable" in lines[-1]:
                continue  # it started while the store was away, and said so
            if not hand.worker_id and hand.is_leaving and code == -signal.SIGTERM:
                continue  # it was stopped before it had installed its signal handlers
            who = f"worker {hand.number} (pid {hand.pid})"
            texts += [f"{who}: {line}" for line in lines if any(words in line for words in (*COMPLAINTS, LOSS))]
            if hand.killed_at is None and code != 0:
                texts.append(f"{who} {_ended(code)}: {hand.log[-1_000:]}")
        return [Remark("processes", text) for text in texts]


async def _stands(hand: Hand) -> bool:
    return not hand.is_alive or is_stopped(hand)


def _ended(code: int | None) -> str:
    return "does not end" if code is None else f"ended with exit code {code}"
