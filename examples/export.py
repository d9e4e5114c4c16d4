"""A long task that reports progress, stops when it is cancelled, and resumes where a failed attempt stopped.

Its first parameter is a `TaskContext`. The task may call `ctx.progress(…)` for every row: holdfast writes only a few
values per second, and any process can read them. A plain function checks `ctx.is_cancelled` to notice that its result
is no longer needed.

Run it: python -m examples.export
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from holdfast import Holdfast, Retry, RunCancelled, TaskContext

ROWS = 300

hf = Holdfast()


# The default retries after one minute and then after four. This example retries sooner.
@hf.task("shop.export.v1", retry=Retry(max_attempts=3, delay=lambda attempt: 0.2 * attempt))
def export(ctx: TaskContext, folder: str, rows: int) -> int:
    """Write one line for each row, and keep the lines that an earlier attempt wrote."""
    path = Path(folder) / ctx.idempotency_key.replace(":", "-")  # the same on every attempt
    done = len(path.read_text().splitlines()) if path.exists() else 0
    with path.open("a") as file:
        for row in range(done, rows):
            if ctx.is_cancelled:
                break
            if row == rows // 2 and ctx.attempt == 1:
                raise ConnectionError("the database has restarted")
            time.sleep(0.002)  # simulates work
            file.write(f"row {row}\n")
            file.flush()
            ctx.progress({"rows": row + 1, "of": rows})
    return rows - done


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with hf, hf.worker():
            endless = await hf.start(export, folder, 1_000_000)
            while (progress := await endless.value("progress")) is None:
                await asyncio.sleep(0.05)
            print(f"{progress['rows']} of {progress['of']:,} rows; nobody needs that many")
            await endless.cancel("too many rows")
            try:
                await endless.result()
            except RunCancelled as cancelled:
                print(cancelled)

            run = await hf.start(export, folder, ROWS)
            ended = asyncio.create_task(run.result())
            while not ended.done():
                await asyncio.wait({ended}, timeout=0.3)
                print(f"  {await run.value('progress')}")
            retried = [fact.data["error"] for fact in await run.audit() if fact.event == "retried"]
            print(f"attempt 1: {retried[0]}")
            print(f"attempt 2 wrote the other {await ended} of {ROWS} rows")


if __name__ == "__main__":
    asyncio.run(main())
