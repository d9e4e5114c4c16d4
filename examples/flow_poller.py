"""A flow that polls a feed for a year, on a virtual clock: the year takes a second.

A flow has no history to replay. Its state is one snapshot, so the last poll of the year costs as much as the first.
The store keeps only the newest snapshots and entries.

Run it: python -m examples.flow_poller
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import Holdfast
from holdfast.testing import Harness

TYPE = "feeds.watch.v1"
FLOW = Path(__file__).with_name("flows") / f"{TYPE}.py"

hf = Holdfast()
asked = 0


@hf.task("feeds.fetch.v1")
async def fetch(url: str) -> str:
    """Simulate a feed that changes with every twentieth request, and is down once."""
    global asked  # noqa: PLW0603 - the state of a simulated server
    asked += 1
    if asked == 33:
        raise ConnectionError("the server is down")
    return f"v{asked // 20}"


async def main() -> None:
    async with Harness(hf) as h:
        await h.flows.register(FLOW, type=TYPE)
        run = await h.start(TYPE, {"url": "https://example.org/feed"})
        began = h.now
        result = await run.result()
        kept = len(await run.history())
        days = (h.now - began).days
    print(f"{days} days, {kept} entries are kept")
    print(f"{result['polls']} polls, the last changes: {', '.join(result['changes'])}")


if __name__ == "__main__":
    asyncio.run(main())
