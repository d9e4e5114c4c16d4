"""Time from a message to the result of a waiting run in another process, on Redis and on SQLite in turns."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from tests.figures.latency import waits
from tests.process.app import letter
from tests.process.crew import Crew

ROUNDS = 60
WARM_ROUNDS = 5
MOST_TIMES_SLOWER = 1.2


async def test_a_message_arrives_on_redis_as_soon_as_on_sqlite(redis_url: str, tmp_path: Path) -> None:
    """In turns, because the speed of a machine changes within seconds."""
    crews = {name: Crew(_folder(tmp_path, name), url=url) for name, url in (("redis", redis_url), ("sqlite", ""))}
    took: dict[str, list[float]] = {name: [] for name in crews}
    async with crews["redis"].hf, crews["sqlite"].hf:
        try:
            for crew in crews.values():
                await crew.hire()
            for _ in range(WARM_ROUNDS + ROUNDS):
                for name, crew in crews.items():
                    took[name].append(await delivery_seconds(crew))
        finally:
            for crew in crews.values():
                crew.dismiss()

    redis, sqlite = (statistics.median(took[name][WARM_ROUNDS:]) for name in ("redis", "sqlite"))
    sys.stdout.write(
        f"figure: message to result p50 {redis * 1e3:.1f} ms on Redis, {sqlite * 1e3:.1f} ms on SQLite: "
        f"{redis / sqlite:.2f} x\n"
    )
    assert redis / sqlite <= MOST_TIMES_SLOWER


async def delivery_seconds(crew: Crew) -> float:
    run = await crew.hf.start(letter)
    await crew.until("the run waits", lambda: waits(crew, run.id))
    begun = time.monotonic()
    await run.send("word", "hello")
    await crew.result(run)
    return time.monotonic() - begun


def _folder(base: Path, name: str) -> Path:
    folder = base / name
    folder.mkdir()
    return folder
