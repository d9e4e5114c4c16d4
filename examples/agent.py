"""An AI agent: a model chooses tools, tools run as steps, a person confirms what costs money.

Each answer of the model and each tool call is recorded once. After a crash the conversation goes on where it
stood: no token is paid for twice, no flight is booked twice. The conversation is the state of a durable loop, so it
may go on for as long as it likes. The model here is a fake; nothing uses the network.

python -m examples.agent
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast import Break, Context, Continue, Holdfast, Retry, StepFailed, WaitTimeout, step_info

TURN_LIMIT = 10

hf = Holdfast()


@dataclass(frozen=True)
class ToolCall:
    tool: str
    argument: str


@dataclass(frozen=True)
class Answer:
    """What a model says: a text, or tools it wants to have called."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True)
class Message:
    role: str
    text: str


@hf.step(retry=Retry(max_attempts=5, initial=1, max_delay=60), timeout=120, retry_timeout=True)
async def ask_model(conversation: list[Message]) -> Answer:
    """Stands for a call of a language model."""
    turn = sum(message.role == "assistant" for message in conversation)
    if turn == 0:
        return Answer(calls=[ToolCall("weather", "Lisbon"), ToolCall("find_flight", "Lisbon")])
    if turn == 1:
        return Answer(calls=[ToolCall("book_flight", "TP-101")])
    return Answer(text=f"Done: {conversation[-1].text}.")


async def weather(city: str) -> str:
    return f"sunny in {city}"


async def find_flight(city: str) -> str:
    return f"TP-101 to {city} for 99"


async def book_flight(flight: str) -> str:
    # The airline is given the key, so that an attempt after a crash books nothing new.
    return f"{flight} is booked ({'key given' if step_info().idempotency_key else 'no key'})"


TOOLS: dict[str, Callable[[str], Awaitable[str]]] = {
    "weather": weather,
    "find_flight": find_flight,
    "book_flight": book_flight,
}
NEEDS_CONFIRMATION = {"book_flight"}


async def use(ctx: Context, call: ToolCall) -> Message:
    """One tool call. What goes wrong is told to the model, which may have another idea."""
    if call.tool in NEEDS_CONFIRMATION:
        ctx.set_value("confirm", f"{call.tool}({call.argument})")
        try:
            is_confirmed = await ctx.receive("confirmed", type=bool, timeout=timedelta(hours=1))
        except WaitTimeout:
            is_confirmed = False
        ctx.set_value("confirm", None)
        if not is_confirmed:
            return Message("tool", f"{call.tool}: the user said no")
    try:
        return Message("tool", await ctx.step(call.tool, TOOLS[call.tool], call.argument))
    except StepFailed as error:
        return Message("tool", f"{call.tool} failed: {error.message}")


async def converse(ctx: Context, conversation: list[Message]) -> Continue[list[Message]] | Break[str]:
    """One turn of the conversation: the model answers, and the tools it wants are called side by side."""
    if sum(message.role == "assistant" for message in conversation) == TURN_LIMIT:
        return Break("I gave up")
    answer = await ask_model(conversation)
    if not answer.calls:
        return Break(answer.text)
    asked = Message("assistant", ", ".join(f"{call.tool}({call.argument})" for call in answer.calls))
    # A scope for each call: two calls of one tool cannot be mistaken for each other.
    found = await ctx.join("tools", {f"call {n}": _using(call) for n, call in enumerate(answer.calls, start=1)})
    return Continue([*conversation, asked, *found.values()])


def _using(call: ToolCall) -> Callable[[Context], Awaitable[Message]]:
    return lambda ctx: use(ctx, call)


@hf.workflow("agent.v2")
async def agent(ctx: Context, request: str) -> str:
    return await ctx.loop("conversation", converse, [Message("user", request)])


async def main() -> None:
    async with hf, hf.worker():
        run = await hf.start(agent, "Book me a flight to somewhere warm")
        while (question := await run.value("confirm")) is None:
            await asyncio.sleep(0.01)
        print(f"confirm {question}? yes")
        await run.send("confirmed", payload=True)
        for entry in await run.history():
            print(f"  {entry.location}")
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
