"""A new employee: a pipeline whose steps are known before it runs, so that everyone sees what is still to come.

Each step gets the result of the one before. One step waits for a signature; if the pipeline fails later, the account is
removed again.

Run it: python -m examples.onboarding
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from holdfast import Context, Holdfast, Retry

hf = Holdfast()

accounts: set[str] = set()


@dataclass(frozen=True)
class Employee:
    name: str
    account: str = ""
    laptop: str = ""


onboarding = hf.pipeline("people.onboarding.v1", description="Everything before the first day.")


@onboarding.step(undo=lambda employee: accounts.discard(employee.account))
def create_account(name: str) -> Employee:
    account = name.lower()
    accounts.add(account)
    return Employee(name, account)


@onboarding.step(retry=Retry(max_attempts=5), timeout=10)
async def order_laptop(employee: Employee) -> Employee:
    return replace(employee, laptop=f"laptop of {employee.name}")


@onboarding.step
async def wait_for_signature(ctx: Context, employee: Employee) -> Employee:
    """Take `ctx` to wait: this step is workflow code."""
    await ctx.receive("signed", timeout=14 * 24 * 3600)
    return employee


@onboarding.step
def say_welcome(employee: Employee) -> str:
    return f"welcome {employee.name}: {employee.account}, {employee.laptop}"


async def main() -> None:
    async with hf, hf.worker():
        run = await hf.start(onboarding, "Ada")
        while "wait_for_signature" not in (said := await run.explain()):
            await asyncio.sleep(0.01)
        print(said.partition(". ")[0])
        await run.send("signed")
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main())
