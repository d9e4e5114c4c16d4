"""An AI agent: a model chooses tools, tools run as steps, and a person confirms actions that cost money.

Each model answer and each tool call is recorded once. After a crash the conversation continues from its last record: no
token is paid for twice, no flight is booked twice. The conversation is the state of a durable loop, so its length is
not limited. The model here is a fake, and nothing uses the network.

Run it: python -m examples.agent
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
    """The answer of a model: a text, or a list of tool calls."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True)
class Message:
    role: str
    text: str


@hf.step(retry=Retry(max_attempts=5, initial=1, max_delay=60), timeout=120, retry_timeout=True)
async def ask_model(conversation: list[Message]) -> Answer:
    """Simulate a call to a language model."""
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
    # A real airline client would pass the idempotency key, so that a retry after a crash books no second flight.
    return f"{flight} is booked ({'key given' if step_info().idempotency_key else 'no key'})"


TOOLS: dict[str, Callable[[str], Awaitable[str]]] = {
    "weather": weather,
    "find_flight": find_flight,
    "book_flight": book_flight,
}
NEEDS_CONFIRMATION = {"book_flight"}


async def use(ctx: Context, call: ToolCall) -> Message:
    """Execute one tool call. A failure becomes a message, so the model can choose another tool."""
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
    """One turn of the conversation: the model answers, and the tools it chose run concurrently."""
    if sum(message.role == "assistant" for message in conversation) == TURN_LIMIT:
        return Break("I gave up")
    answer = await ask_model(conversation)
    if not answer.calls:
        return Break(answer.text)
    asked = Message("assistant", ", ".join(f"{call.tool}({call.argument})" for call in answer.calls))
    # Each call has its own scope. Two calls of the same tool therefore have different locations in the history.
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
