"""One answer of Redis in five is lost under load: every run ends once, with its own result and effects.

`HOLDFAST_LOST_ANSWERS_RUNS=1000` makes it last longer.
"""

from __future__ import annotations

import random
import sys

from holdfast import Holdfast
from holdfast.testing.patience import until
from tests.duration import lasting
from tests.faults.app import Post, workflows
from tests.plugin.tiers import amount
from tests.redis import RedisProxy

RUNS = amount(short=30, long=300, variable="HOLDFAST_LOST_ANSWERS_RUNS")


@lasting(RUNS / 10)
async def test_one_lost_answer_in_five_changes_no_result(redis_url: str) -> None:
    chance = random.Random(1)
    with RedisProxy(redis_url) as proxy:
        async with Holdfast(proxy.url) as hf:
            hf.include(workflows)
            post = Post(hf, RUNS)
            async with hf.worker(concurrency=50), post.sending():
                rule = proxy.cut_around(
                    lambda command: command[0].upper() == b"EVALSHA" and chance.random() < 0.2, "lost", count=1_000_000
                )
                await until("all runs are started", lambda: len(post.runs) == RUNS)
            rule.end()
            await post.check()
    assert rule.hits >= RUNS // 3
    sys.stdout.write(f"figure: {rule.hits} answers lost, {RUNS} runs: 0 duplicates, 0 losses\n")
