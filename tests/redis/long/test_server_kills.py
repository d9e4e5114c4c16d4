"""A server that is killed loses no confirmed write. A replica that missed writes gives no token twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast import Context, Holdfast, Registry, StoreUnavailable
from holdfast.app import session_of
from holdfast.core.checkpoint import Hold
from holdfast.stores.redis import redis_store
from holdfast.testing.contract.arrange import (
    a_step,
    an_intent,
    checkpoint_for,
    claim_one,
    holding_of,
    renew,
)
from tests.redis import RedisProxy, RedisServer

KILLS = 20
STEPS = 4

app = Registry()
executed: Counter[str] = Counter()


@app.step
async def note(name: str) -> str:
    executed[name] += 1
    return name


@app.workflow("walk.v1")
async def walk(ctx: Context, number: int) -> list[str]:
    return [await note(f"{number}.{place}") for place in range(STEPS)]


async def available(call: Callable[[], Awaitable[object]]) -> None:
    """Wait until the store answers again. After a failure it does not ask the server at once."""
    while True:
        with suppress(StoreUnavailable):
            await call()
            return
        await asyncio.sleep(0.05)


async def test_twenty_kills_under_load_lose_no_confirmed_write() -> None:
    """With `appendfsync always`, whatever a start has returned exists, and every run ends once with its own result."""
    confirmed: dict[int, str] = {}
    with RedisServer({"appendfsync": "always"}) as server:
        async with Holdfast(server.url_of(namespace="kills")) as hf:
            hf.include(app)
            async with hf.worker(lease_seconds=5):
                is_over = asyncio.Event()

                async def produce(first: int) -> None:
                    number = first
                    while not is_over.is_set():
                        with suppress(StoreUnavailable):  # the key makes the next attempt safe
                            run = await hf.start(walk, number, key=f"walk-{number}")
                            confirmed[number] = run.id
                            number += 4

                producers = [asyncio.create_task(produce(first)) for first in range(4)]
                for kill in range(1, KILLS + 1):
                    while len(confirmed) < kill * 5:
                        await asyncio.sleep(0.01)
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                is_over.set()
                await asyncio.gather(*producers)
                await available(lambda: hf.run(confirmed[0]).info())
                results = {number: await hf.run(run_id).result(timeout=120) for number, run_id in confirmed.items()}
            histories = {number: await hf.run(run_id).history() for number, run_id in confirmed.items()}
            findings = [finding.text for finding in await session_of(hf).store.check() if finding.subject == "epochs"]

    assert len(confirmed) >= KILLS * 5
    assert results == {number: [f"{number}.{place}" for place in range(STEPS)] for number in confirmed}
    assert {len(history) for history in histories.values()} == {STEPS}
    assert findings
    assert all("no client missed a confirmed write" in text for text in findings)


async def test_after_a_failover_no_two_holders_share_a_token_and_no_history_has_a_hole() -> None:
    """The promoted replica was cut off, so it misses a claim and two steps that were confirmed."""
    with (
        RedisServer({"appendfsync": "everysec"}) as primary,
        RedisServer({"appendfsync": "everysec"}, replica_of=primary) as replica,
        RedisProxy(primary.url_of(namespace="f")) as proxy,
    ):
        old, new = redis_store(proxy.url), redis_store(proxy.url)
        await old.open()
        await old.create([an_intent(1), an_intent(2)])
        before = await claim_one(old)
        await old.checkpoint([checkpoint_for(before, Hold(), entries=(a_step("s1", position=1),))])
        replica.catch_up()
        replica.cut_off()
        await old.checkpoint([checkpoint_for(before, Hold(), entries=(a_step("s2", position=2),))])
        other = await claim_one(old)

        replica.promote()
        proxy.redirect_to(replica.url)
        proxy.cut()
        (verdict,) = (
            await old.checkpoint([checkpoint_for(before, Hold(), entries=(a_step("s3", position=3),))])
        ).verdicts
        assert verdict.is_lost
        renewed = await renew(old, holding_of(before), holding_of(other))
        assert [one.is_lost for one in renewed.verdicts] == [True, True]

        await new.open()
        leases = {lease.run.id: lease for lease in (await claim_one(new), await claim_one(new))}
        histories = {run_id: [entry.location for entry in await new.history(run_id)] for run_id in leases}
        findings = [finding for finding in await new.check() if finding.subject == "epochs"]
        await old.close()
        await new.close()

    tokens = {(before.run.id, before.run.token), (other.run.id, other.run.token)}
    assert tokens.isdisjoint((lease.run.id, lease.run.token) for lease in leases.values())
    assert {lease.run.crashes for lease in leases.values()} == {0}
    assert histories[before.run.id] == ["s1"]
    assert "confirmed writes were lost" in findings[-1].text
