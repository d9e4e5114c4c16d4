"""A flow that a language model wrote: it is refused with all its mistakes at once, and then corrected.

The model writes a program, holdfast checks it, and the mistakes go back as text: line, column, what is wrong and what
to write instead. Nothing of the program is executed as Python, so it may come from a stranger.

Run it: python -m examples.flow_from_model
"""

from __future__ import annotations

import asyncio

from holdfast import FlowRefused, Holdfast

TYPE = "support.triage.v1"

FIRST_DRAFT = '''\
"""Answer a support ticket."""

import datetime


async def main(ticket: str):
    kind = await call("support.classify.v1", text=ticket)
    if kind.urgent:
        notify = start("mail.send.v1", to="oncall", text=ticket)
    print(kind)
    receive("reply", timeout=days(1))
    return {"kind": knd, "words": {w for w in ticket.split()}}
'''

SECOND_DRAFT = '''\
"""Answer a support ticket."""


async def main(ticket: str):
    kind = await call("support.classify.v1", text=ticket)
    if kind["urgent"]:
        await call("mail.send.v1", to="oncall", text=ticket)
    log(kind)
    reply = await receive("reply", timeout=days(1))
    return {"kind": kind["name"], "reply": reply, "words": len(ticket.split())}
'''

hf = Holdfast()


@hf.task("support.classify.v1")
async def classify(text: str) -> dict[str, object]:
    return {"name": "outage", "urgent": "down" in text}


@hf.task("mail.send.v1")
async def send_mail(to: str, text: str) -> None:
    print(f"  mail to {to}: {text}")


def model(mistakes: str | None) -> str:
    """Simulate a language model, which gets the mistakes of its last draft."""
    return FIRST_DRAFT if mistakes is None else SECOND_DRAFT


async def write_flow() -> None:
    """Let the model write the flow until holdfast accepts it."""
    mistakes: str | None = None
    for draft in range(1, 4):
        try:
            flow = await hf.flows.register(model(mistakes), type=TYPE, by="model")
        except FlowRefused as refused:
            mistakes = str(refused)
            print(f"draft {draft} has {len(refused.mistakes)} mistakes")
            for one in refused.mistakes:
                print(f"  line {one.line}: {one.message}; {one.advice}")
        else:
            print(f"draft {draft} is registered: {flow.description}")
            return
    raise SystemExit("the model cannot write this flow")


async def main() -> None:
    async with hf, hf.worker():
        await write_flow()
        run = await hf.start(TYPE, {"ticket": "the shop is down"})
        await run.send("reply", "we are on it")
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
