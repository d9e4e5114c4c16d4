"""An access request as a flow: its program is text in the store, and a worker that never saw it before executes it.

The tasks are Python. The flow says in which order they happen, and waits for people and for time. The first request
is granted and later revoked. The second one gets no answer: on a virtual clock, three days pass at once.

Run it: python -m examples.flow_access
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import Holdfast
from holdfast.testing import Harness

TYPE = "access.request.v1"
FLOW = Path(__file__).with_name("flows") / f"{TYPE}.py"

hf = Holdfast()


@hf.task("access.approvers.v1")
async def approvers(user: str) -> list[str]:
    return ["ada", "grace"]


@hf.task("access.grant.v1")
async def grant(user: str) -> None:
    print(f"  {user} gets access")


@hf.task("access.revoke.v1")
async def revoke(user: str) -> None:
    print(f"  {user} loses access")


@hf.task("mail.send.v1")
async def send_mail(to: str, text: str) -> None:
    print(f"  mail to {to}: {text}")


async def main() -> None:
    async with hf, hf.worker():
        flow = await hf.flows.register(FLOW, type=TYPE)
        print(f"{flow.type} {flow.version[:12]}: {flow.description}")
        run = await hf.start(TYPE, {"user": "bob", "hours": 2})
        await run.send("decision", {"approved": True, "by": "ada"})
        await run.send("revoke", "bob left the company")
        print(await run.result())

    async with Harness(hf) as h:
        await h.flows.register(FLOW, type=TYPE)
        run = await h.start(TYPE, {"user": "eve"})
        result = await run.result()
        print(f"eve, {h.now:%d} January: {result['state']}")


if __name__ == "__main__":
    asyncio.run(main())
