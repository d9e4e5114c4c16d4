"""Jobs: the requests of producers, kind by kind, and their expected outcomes.

Another process can repeat a job from its beginning: starts have keys, and all other calls have ids. So each job is
complete in the end, even if producers die. It writes to the journal only after each call was accepted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast import Holdfast, RunHandle, StoreUnavailable
from holdfast.app import session_of
from holdfast.core.codec import encode_any
from holdfast.core.commands import Cancel, EmitEvents
from holdfast.core.model import Event
from holdfast.core.questions import EndsOf
from tests.chaos import flows, load
from tests.chaos.journal import Acceptance, Expectation, Journal, What
from tests.faults.app import insist
from tests.process.app import cashiers, saga

ENDED = ("succeeded", "cancelled")
WAITING = ("suspended",)
LOOK_SECONDS = 0.5


class Job:
    """One job of a producer."""

    def __init__(self, hf: Holdfast, journal: Journal, book: str, item: str, seed: str) -> None:
        self.hf = hf
        self.book = book
        self.item = item
        self.chance = random.Random(f"{seed} {item}")
        self._journal = journal
        self._kind = ""
        self._open: set[str] = set()

    async def do(self, kind: str) -> None:
        self._kind = kind
        self.accept("open")
        await KINDS[kind](self)
        await self._ended()
        self.accept("close")

    async def _ended(self) -> None:
        """Wait until its runs have ended, so that the load does not exceed what workers can execute."""
        while self._open:
            with suppress(StoreUnavailable):
                self._open -= {
                    run.id for run in await session_of(self.hf).store.changes(EndsOf(run_ids=sorted(self._open)))
                }
            await asyncio.sleep(LOOK_SECONDS)

    def accept(self, what: What, run_id: str = "", **more: Any) -> None:
        self._journal.write(Acceptance(item=self.item, what=what, kind=self._kind, run_id=run_id, **more))

    async def pause(self, most_seconds: float) -> None:
        await asyncio.sleep(self.chance.uniform(0, most_seconds))

    async def start(self, workflow: Any, *args: Any, expect: Expectation, name: str = "", **options: Any) -> Any:
        key = f"{self.item}{name}"
        run: RunHandle[Any] = await insist(partial(self.hf.start, workflow, *args, key=key, **options))
        assert run.id is not None
        self.accept("start", run.id, expect=expect)
        if expect.states != WAITING:
            self._open.add(run.id)
        return run

    async def send(self, run: RunHandle[Any], name: str, payload: object, number: int) -> None:
        # Perhaps a repetition, and the run has ended since: the id shows that the message was accepted.
        await insist(partial(run.send, name, payload, id=f"{self.item}-{number}"))
        self.accept("send", run.id)

    async def emit(self, topic: str, payload: object) -> None:
        event = Event(id=f"{topic}-{payload}", topic=topic, payload=encode_any(payload, "payload"))
        await insist(partial(session_of(self.hf).store.apply, EmitEvents(events=[event])))
        self.accept("emit")

    async def cancel(self, run: RunHandle[Any]) -> None:
        request = Cancel(run_id=run.id, id=f"{self.item}-cancel", reason="no longer wanted")
        answer = await insist(partial(session_of(self.hf).store.apply, request))
        self.accept("cancel", run.id, answer=answer)


async def _chain(job: Job) -> None:
    await job.start(load.chain, job.book, 10, 0.05, expect=Expectation())


async def _saga(job: Job) -> None:
    number = job.chance.randrange(1_000)
    run = await job.start(saga, job.book, number, expect=Expectation())
    for place in range(2):
        await job.pause(1.0)
        await job.send(run, "word", f"{number} {place}", place)


async def _letters(job: Job) -> None:
    count = job.chance.randint(2, 12)
    expect = Expectation(letters={"a": (count + 1) // 2, "b": count // 2})
    run = await job.start(load.letters, count, expect=expect)
    for number in range(count):
        await job.pause(0.3)
        await job.send(run, "ab"[number % 2], number // 2, number)


async def _gossip(job: Job) -> None:
    count = job.chance.randint(3, 9)
    expect = Expectation(letters={"a": (count + 1) // 2, "b": count // 2})
    target = await job.start(load.letters, count, expect=expect, name="-target")
    await job.start(load.gossip, job.book, target.id, count, expect=Expectation(result=count))


async def _patient(job: Job) -> None:
    await job.start(load.letters, 1, expect=Expectation(states=WAITING))


async def _watch(job: Job) -> None:
    topic, count = f"topic.{job.item}", job.chance.randint(1, 3)
    for number in range(2):
        expect = Expectation(result=list(range(count)))
        await job.start(load.watch, topic, count, expect=expect, name=f"-{number}")
    for number in range(count):
        await job.pause(0.5)
        await job.emit(topic, number)


async def _queue(job: Job) -> None:
    topic, payloads = f"queue.{job.item}", tuple([number] for number in range(3))
    for number in range(len(payloads)):
        expect = Expectation(one_of=topic, payloads=payloads)
        await job.start(load.watch, topic, 1, expect=expect, name=f"-{number}")
        await job.emit(topic, number)


async def _sleeper(job: Job) -> None:
    lengths = [job.chance.choice([0.05, 0.3, 1.2, 2.5]) for _ in range(3)]
    await job.start(load.sleeper, job.book, lengths, expect=Expectation(result=len(lengths)))


async def _flaky(job: Job) -> None:
    await job.start(load.flaky, job.book, job.chance.randint(1, 3), expect=Expectation())


async def _hopeless(job: Job) -> None:
    await job.start(load.hopeless, job.book, expect=Expectation(states=("failed",)))


async def _trip(job: Job) -> None:
    stages, waits = job.chance.randint(1, 5), job.chance.random() < 0.5
    expect = Expectation(states=("cancelled" if waits else "failed",))
    run = await job.start(load.trip, job.book, stages, waits, expect=expect)
    if waits:
        await job.pause(1.0)
        await job.cancel(run)


async def _cancel(job: Job) -> None:
    run = await job.start(load.chain, job.book, 3, expect=Expectation(states=ENDED))
    await job.pause(0.5)
    await job.cancel(run)


async def _cashiers(job: Job) -> None:
    count = job.chance.randint(1, 8)
    await job.start(cashiers, count, expect=Expectation(result=list(range(count))))


async def _clerks(job: Job) -> None:
    count = job.chance.randint(1, 8)
    url = session_of(job.hf).url
    await job.start(load.clerks, job.book, url, count, expect=Expectation(result=count))


async def _family(job: Job) -> None:
    count = job.chance.randint(1, 4)
    await job.start(load.family, job.book, count, expect=Expectation(result=[2 * number for number in range(count)]))


async def _limited(job: Job) -> None:
    for number in range(3):
        await job.start(load.limited, job.book, expect=Expectation(), name=f"-{number}")


async def _keyed(job: Job) -> None:
    tags = {"tenant": job.chance.choice("xy")}
    await job.start(load.keyed, job.book, expect=Expectation(), tags=tags)


async def _rated(job: Job) -> None:
    await job.start(load.rated, job.book, expect=Expectation())


async def _flow_errands(job: Job) -> None:
    count = job.chance.randint(1, 4)
    result = {
        "doubled": [2 * number for number in range(count)],
        "both": {"a": 20, "b": 40},
        "why": "time",
        "kind": "failed",
        "has_mark": True,
    }
    expect = Expectation(result=result, children=count + flows.ERRANDS_CHILDREN)
    await job.start("flow.errands", {"book": job.book, "count": count}, expect=expect)


async def _flow_letters(job: Job) -> None:
    count = job.chance.randint(2, 12)
    expect = Expectation(letters={"a": (count + 1) // 2, "b": count // 2})
    run = await job.start("flow.letters", {"count": count}, expect=expect)
    for number in range(count):
        await job.pause(0.3)
        await job.send(run, "ab"[number % 2], number // 2, number)


async def _flow_watch(job: Job) -> None:
    topic, count = f"topic.{job.item}", job.chance.randint(1, 3)
    expect = Expectation(result=list(range(count)))
    await job.start("flow.watch", {"topic": topic, "count": count}, expect=expect)
    for number in range(count):
        await job.pause(0.5)
        await job.emit(topic, number)


async def _flow_host(job: Job) -> None:
    lengths = [job.chance.choice([0.05, 0.3, 1.2, 2.5]) for _ in range(3)]
    await job.start(load.host, lengths, expect=Expectation(result=0, children=1))


async def _flow_broken(job: Job) -> None:
    await job.start("flow.broken", {"book": job.book}, expect=Expectation(states=("failed",), children=1))


async def _flow_cancel(job: Job) -> None:
    payload = {"book": job.book, "count": 3}
    run = await job.start("flow.errands", payload, expect=Expectation(states=ENDED))
    await job.pause(2.0)
    await job.cancel(run)


KINDS: dict[str, Callable[[Job], Awaitable[None]]] = {
    "chain": _chain,
    "saga": _saga,
    "letters": _letters,
    "gossip": _gossip,
    "patient": _patient,
    "watch": _watch,
    "queue": _queue,
    "sleeper": _sleeper,
    "flaky": _flaky,
    "hopeless": _hopeless,
    "trip": _trip,
    "cancel": _cancel,
    "cashiers": _cashiers,
    "clerks": _clerks,
    "family": _family,
    "limited": _limited,
    "keyed": _keyed,
    "rated": _rated,
    "flow errands": _flow_errands,
    "flow letters": _flow_letters,
    "flow watch": _flow_watch,
    "flow host": _flow_host,
    "flow broken": _flow_broken,
    "flow cancel": _flow_cancel,
}
