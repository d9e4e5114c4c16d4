"""A nightly report: one step per shop, all at once, with plain `asyncio.gather`. One shop always fails.

Run it: python -m examples.nightly_report
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from holdfast import Context, Holdfast, Retry, StepFailed

hf = Holdfast()


@dataclass(frozen=True)
class Report:
    total_cents: int
    missing: list[str]


@hf.step(retry=Retry(max_attempts=2, initial=0.01), timeout=30)
async def fetch_sales(shop: str) -> int:
    if shop == "atlantis":
        raise ConnectionError("no route to the bottom of the sea")
    await asyncio.sleep(0.01)  # this is a step, so it may do real I/O
    return 100 * len(shop)


@hf.step
def publish(report: Report) -> str:
    return f"{report.total_cents / 100:.2f} in total, missing: {', '.join(report.missing) or 'none'}"


@hf.workflow("reports.nightly.v1")
async def nightly_report(ctx: Context, shops: list[str]) -> str:
    ctx.logger.info("asking %d shops", len(shops))
    # After a crash, the shops that have already answered are not asked again.
    answers = await asyncio.gather(*(fetch_sales(shop) for shop in shops), return_exceptions=True)
    total, missing = 0, []
    for shop, answer in zip(shops, answers, strict=True):
        match answer:
            case int():
                total += answer
            case StepFailed():
                missing.append(shop)
            case _:
                raise answer
    return await publish(Report(total, missing))


async def main() -> None:
    async with hf, hf.worker():
        run = await hf.start(nightly_report, ["berlin", "paris", "atlantis", "lisbon"])
        print(await run.result())
        for entry in await run.history():
            print(f"  {entry.location:<16} {entry.state:<7} {entry.attempts} attempts")


if __name__ == "__main__":
    asyncio.run(main())
