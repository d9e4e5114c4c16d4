"""A newsletter to thousands of readers: one child run per letter, 50 at once, and a report of the failures.

`ctx.map` starts the children of a batch together. It wakes this run once per batch, not once per letter. A letter that
cannot be delivered fails alone. After a crash, a letter that is recorded as sent is not sent again.

Run it: python -m examples.newsletter
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from holdfast import Break, Context, Continue, Fatal, Holdfast, JoinFailed

READERS = 2_000
BATCH = 200
AT_ONCE = 50

hf = Holdfast()


@dataclass(frozen=True)
class Report:
    sent: int
    returned: list[str]

    @property
    def total(self) -> int:
        return self.sent + len(self.returned)


@hf.task("letters.deliver.v1")
async def deliver(issue: str, address: str) -> str:
    """Deliver one letter. A task has three attempts, minutes apart; `Fatal` ends it without another attempt."""
    if address.startswith("gone"):
        raise Fatal(f"{address} does not exist")
    return f"{issue} to {address}"


@hf.workflow("letters.newsletter.v1")
async def newsletter(ctx: Context, issue: str, addresses: list[str]) -> Report:
    async def send_batch(ctx: Context, report: Report) -> Continue[Report] | Break[Report]:
        batch = addresses[report.total : report.total + BATCH]
        if not batch:
            return Break(report)
        try:
            sent = len(await ctx.map(deliver, [(issue, address) for address in batch], limit=AT_ONCE))
            returned = []
        except JoinFailed as failure:  # some children failed; all have ended
            sent = len(failure.results)
            returned = [batch[index] for index in failure.errors]
        report = Report(report.sent + sent, report.returned + returned)
        ctx.set_value("progress", report.total)
        return Continue(report)

    # A durable loop instead of `for`: it prunes the records of old batches, so they are not replayed.
    return await ctx.loop("batches", send_batch, Report(0, []), keep=1, every=1)


async def main() -> None:
    addresses = [f"{'gone' if number % 400 == 7 else 'reader'}-{number}@example.org" for number in range(READERS)]
    async with hf, hf.worker(concurrency=AT_ONCE):
        run = await hf.start(newsletter, "issue 7", addresses)
        ended = asyncio.create_task(run.result())
        while not ended.done():
            await asyncio.wait({ended}, timeout=0.5)
            print(f"  {await run.value('progress', 0)} of {READERS}")
        report = await ended
        letters = [info.type async for info in hf.list(parent_id=run.id)]

    assert len(letters) == report.total == READERS
    print(f"{report.sent} sent, returned: {', '.join(report.returned)}")


if __name__ == "__main__":
    asyncio.run(main())
