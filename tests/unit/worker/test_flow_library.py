"""The flow library of a worker: what it asks the store for, and when the worker may claim."""

from __future__ import annotations

import pytest

from holdfast import RunState, StoreUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import VirtualClock
from holdfast.testing.faults import FaultyStore
from holdfast.testing.harness import Harness

FLOW = "async def main():\n    return 1\n"


async def test_a_worker_that_could_not_start_claims_no_flows() -> None:
    """The flows that it has found must not make it claim: nothing would renew the leases."""
    clock = VirtualClock()
    store = FaultyStore(MemoryStore(clock=clock))
    async with Harness(clock=clock, store=store) as h:
        await h.stop_worker()
        await h.flows.register(FLOW, type="flow")
        run = await h.start("flow")
        before = len(store.calls)
        store.fail(before + 1, when="before")
        worker = h._local_workers.make(clock=h.clock, has_heart=False)
        with pytest.raises(StoreUnavailable):
            await worker.start()
        await h.flows.register(FLOW, type="another")
        await h.advance(60)

        assert store.calls[before:] == ["renew"]
        assert (await run.info()).state is RunState.PENDING
