"""A step that blocks its worker's event loop: the worker keeps its leases for a while, and loses them in the end."""

from __future__ import annotations

import asyncio

from tests.process.app import blocking, quick
from tests.process.crew import Crew, facts, marks, on_every_store


@on_every_store
async def test_a_blocked_loop_keeps_its_leases(crew: Crew) -> None:
    lease = 3.0
    blocked = await crew.hire(lease=lease)
    run = await crew.hf.start(blocking, crew.book, str(crew.gate()))
    await crew.begun(run, "block", blocked)
    await crew.hire()
    await asyncio.sleep(1.5 * lease)
    crew.gate().touch()

    await crew.result(run)

    assert crew.executions(run, "block") == [blocked.number]
    assert len(await facts(run, "claimed")) == 1


async def test_a_loop_that_is_silent_for_several_leases_loses_them(crew: Crew) -> None:
    blocked = await crew.hire(lease=0.5)
    run = await crew.hf.start(blocking, crew.book, str(crew.gate()))
    await crew.begun(run, "block", blocked)
    heir = await crew.hire()
    crew.gate(hand=heir).touch()

    await crew.result(run)
    crew.gate().touch()

    assert crew.executions(run, "block") == [blocked.number, heir.number]
    assert (await marks(run))["block"] == crew.ledger.deeds("began", run.id)[-1].mark
    await crew.said(blocked, "silent")
    heir.kill()
    assert len(await crew.result(await crew.hf.start(quick, crew.book, 2))) == 2  # the event loop runs again
