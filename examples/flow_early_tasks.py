"""Tasks that a flow starts early and awaits late: a durable call begins at once, and `await` waits for its handle.

A handle is a value. The flow keeps it in a variable, passes it to a helper, and may never await it.

Run it: python -m examples.flow_early_tasks
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import Fatal, Holdfast

TYPE = "reports.daily.v1"
FLOW = Path(__file__).with_name("flows") / f"{TYPE}.py"

hf = Holdfast()
begun: list[str] = []
all_begun = asyncio.Event()


async def begin(name: str) -> None:
    """Note that a task began, and wait until all four have begun: they run side by side."""
    begun.append(name)
    if len(begun) == 4:
        all_begun.set()
    await all_begun.wait()


@hf.task("figures.sales.v1")
async def sales(day: str) -> int:
    await begin("sales")
    return 17


@hf.task("figures.visits.v1")
async def visits(day: str) -> int:
    await begin("visits")
    return 230


@hf.task("figures.weather.v1")
async def weather(day: str) -> str:
    await begin("weather")
    raise Fatal("the station is silent")


@hf.task("texts.opening.v1")
async def opening(day: str) -> str:
    await begin("opening")
    return f"Report of {day}:"


@hf.task("mail.send.v1")
async def send_mail(to: str, text: str) -> None:
    print(f"  mail to {to}: {text}")


async def main() -> None:
    async with hf, hf.worker():
        await hf.flows.register(FLOW, type=TYPE)
        run = await hf.start(TYPE, {"day": "Monday"})
        result = await run.result()
    print("begun side by side:", ", ".join(sorted(begun)))
    print(result)


if __name__ == "__main__":
    asyncio.run(main())
