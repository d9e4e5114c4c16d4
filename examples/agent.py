"""An AI agent: a model chooses tools, tools run as steps, a person confirms what costs money.

Each answer of the model and each tool call is recorded once. After a crash the conversation goes on where it
stood: no token is paid for twice, no flight is booked twice. The model here is a fake; nothing uses the network.

python -m examples.agent
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast import Context, Holdfast, Retry, StepFailed, WaitTimeout, step_info

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


@hf.workflow("agent.v1")
async def agent(ctx: Context, request: str) -> str:
    conversation = [Message("user", request)]
    for _ in range(TURN_LIMIT):
        answer = await ask_model(conversation)
        if not answer.calls:
            return answer.text
        conversation.append(Message("assistant", ", ".join(f"{call.tool}({call.argument})" for call in answer.calls)))
        conversation += await asyncio.gather(*(use(ctx, call) for call in answer.calls))
    return "I gave up"


async def main() -> None:
    async with hf, hf.worker():
        run = await hf.start(agent, "Book me a flight to somewhere warm")
        while (question := await run.value("confirm")) is None:
            await asyncio.sleep(0.01)
        print(f"confirm {question}? yes")
        await run.send("confirmed", payload=True)
        print(await run.result())
        for entry in await run.history():
            print(f"  {entry.location}")


if __name__ == "__main__":
    asyncio.run(main())
