"""A worker that is stopped for longer than its lease: whatever it does when it wakes up comes too late."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from pathlib import Path

from holdfast import RunHandle
from tests.process.app import quick, story
from tests.process.crew import Crew, Hand, facts, marks, step

LEASE_SECONDS = 1.5
ROUNDS = max(1, int(os.environ.get("HOLDFAST_PROCESS_SECONDS", "8")) // 8)


async def freeze(crew: Crew, hand: Hand) -> None:
    """Stop a process, but not while it writes: then nobody could, until it goes on."""
    for _ in range(20):
        hand.signal(signal.SIGSTOP)
        await crew.until("the process is stopped", lambda: is_stopped(hand))
        for _ in range(10):
            if not is_locked(crew.write_lock):
                return
            await asyncio.sleep(0.02)
        hand.signal(signal.SIGCONT)
        await asyncio.sleep(0.05)
    raise AssertionError(crew.report("whenever the process was stopped, it was writing"))


def is_locked(path: Path) -> bool:
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def is_stopped(hand: Hand) -> bool:
    with open(f"/proc/{hand.pid}/stat") as stat:  # noqa: PTH123 - it is no file
        return stat.read().rpartition(")")[2].split()[0] == "T"


async def test_a_worker_that_was_stopped_writes_nothing_and_drops_its_bodies(crew: Crew) -> None:
    for round in range(ROUNDS):
        await freeze_once(crew, round)


async def freeze_once(crew: Crew, round: int) -> None:
    done, busy, cut = (crew.gate(f"{name}-{round}") for name in ("done", "busy", "cut"))
    frozen = await crew.hire(lease=LEASE_SECONDS)
    # The first is over when the process wakes up, the second executed by another; both bodies end by themselves
    # then. That of the third would not.
    over = await crew.hf.start(story, crew.book, str(done))
    racing = await crew.hf.start(story, crew.book, str(busy))
    hanging = await crew.hf.start(story, crew.book, str(cut), "hang")
    for run in (over, racing, hanging):
        await crew.begun(run, "middle", frozen)
    await freeze(crew, frozen)
    done.touch()
    cut.touch()
    heir = await crew.hire(lease=LEASE_SECONDS)
    await crew.results([over, hanging])
    await crew.begun(racing, "middle", heir)
    before = [await everything(run) for run in (over, hanging)]

    frozen.signal(signal.SIGCONT)
    await crew.until("the hanging body is cancelled", lambda: is_cancelled(crew, hanging, frozen))
    busy.touch()
    await crew.result(racing)

    assert [await everything(run) for run in (over, hanging)] == before
    for run in (over, racing, hanging):
        assert crew.executions(run, "middle") == [frozen.number, heir.number]
        assert crew.executions(run, "last") == [heir.number]
        assert (await marks(run))["middle"] == crew.ledger.deeds("began", run.id, "middle")[-1].mark
        assert (await step(run, "middle")).attempts == 2
        assert len(await facts(run, "succeeded")) == 1
        assert [fact.data.get("lost") for fact in await facts(run, "claimed")] == [None, frozen.worker_id]

    heir.kill()
    assert len(await crew.result(await crew.hf.start(quick, crew.book, 3))) == 3  # the stopped one works again
    frozen.kill()


def is_cancelled(crew: Crew, run: RunHandle[list[str]], hand: Hand) -> bool:
    return hand.pid in [deed.pid for deed in crew.ledger.deeds("cancelled", run.id, "middle")]


async def everything(run: RunHandle[list[str]]) -> object:
    """All that the store knows of a run."""
    return await run.info(), await run.history(), await run.audit()
