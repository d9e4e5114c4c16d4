"""The store on the clock of the server, which moves between two loads of one operation."""

from __future__ import annotations

from holdfast import Context, Holdfast
from holdfast.app import session_of
from holdfast.testing.patience import until


async def test_expired_runs_are_removed_although_time_passes_between_loads(redis_url: str) -> None:
    hf = Holdfast(redis_url)

    @hf.workflow("order")
    async def order(_ctx: Context) -> None: ...

    async with hf:
        async with hf.worker():
            await hf.execute(order)
        removed: dict[str, int] = {}

        async def is_removed() -> bool:
            removed.update((await session_of(hf).store.prune(100, retention=1)).runs)
            return bool(removed)

        await until("the run is old enough", is_removed)

        assert removed == {"order": 1}
        assert [run async for run in hf.list()] == []
