"""Connections to Redis that are cut around scripts: no call is lost, and none is carried out twice."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from typing import get_args

import pytest

from holdfast import Holdfast
from holdfast.stores.redis.scripts import lua_scripts
from holdfast.testing.patience import until
from holdfast.worker import leases
from tests.faults.app import Post, workflows
from tests.proxy import CutMoment
from tests.redis import RedisProxy
from tests.redis.proxy import Command

CUTS = 200
SCRIPTS = ("load", "commit", "claim", "renew")


async def test_cuts_around_scripts_lose_and_repeat_nothing(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LONGEST_PAUSE_SECONDS", 1.0)  # so that there are heartbeats to cut
    scripts = lua_scripts()
    moments: tuple[CutMoment, ...] = get_args(CutMoment)
    with RedisProxy(redis_url) as proxy:
        async with Holdfast(proxy.url) as hf:
            hf.include(workflows)
            post = Post(hf)
            async with hf.worker(concurrency=50), post.sending():
                rules = [
                    proxy.cut_around(_some_of(getattr(scripts, name).sha), moment, count=CUTS)
                    for name in SCRIPTS
                    for moment in moments
                ]
                await until("each script is cut", lambda: all(rule.hits for rule in rules))
                await until("all cuts are made", lambda: sum(rule.hits for rule in rules) >= CUTS)
                proxy.heal()
            await post.check()

    cuts = sum(rule.hits for rule in rules)
    sys.stdout.write(f"figure: {cuts} cuts, {len(post.runs)} runs: 0 duplicates, 0 losses\n")


def _some_of(sha: str) -> Callable[[Command], bool]:
    """Match every fifth call of a script, so that the repetition usually succeeds."""
    pattern = re.compile(sha.encode())
    numbers = itertools.count(1)
    return lambda words: len(words) > 1 and pattern.fullmatch(words[1]) is not None and next(numbers) % 5 == 0
