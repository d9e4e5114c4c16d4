"""Routes: a commit takes the quicker of two routes, on any machine."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast.stores.sqlite.routes import QUICK_SECONDS, Routes


def used(loop: float = 0.0003, thread: float = 0.0006) -> Routes:
    """Routes that have measured these times for both ways."""
    known = Routes()
    known.commit_seconds = known.loop_seconds = loop
    known.thread_seconds = thread
    return known


def share_here(known: Routes, count: int = 1_280) -> float:
    return sum(known.is_here() for _ in range(count)) / count


def test_no_commit_runs_on_the_loop_before_a_commit_was_quick() -> None:
    known = Routes()
    assert not known.is_here()
    for _ in range(10):
        known.committed(0.0002)
    assert known.is_here()


def test_a_slow_disk_never_blocks_the_loop() -> None:
    known = used(loop=2 * QUICK_SECONDS, thread=5 * QUICK_SECONDS)
    assert share_here(known) == 0


def test_one_slow_commit_is_ignored_and_several_are_not() -> None:
    known = used()
    known.committed(1.0)
    assert known.is_here()
    for _ in range(5):
        known.committed(1.0)
    assert not known.is_here()


@pytest.mark.parametrize(("loop", "thread", "share"), [(0.0003, 0.0006, 0.99), (0.0009, 0.0006, 0.01)])
def test_the_quicker_route_is_taken_and_the_other_tried_occasionally(loop: float, thread: float, share: float) -> None:
    assert share_here(used(loop, thread)) == pytest.approx(share, abs=0.005)


def test_a_loop_on_a_busy_processor_hands_commits_to_the_thread_and_takes_them_back() -> None:
    known = used()
    for _ in range(20):  # each commit is quick enough for the loop, and slower than the thread's answer
        known.committed(0.0009)
        known.answered_here()
    assert share_here(known) < 0.02
    for _ in range(20):
        known.committed(0.0002)
        known.answered_here()
    assert share_here(known) > 0.98


async def test_the_thread_is_timed_from_the_request_to_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    known, answer = Routes(), asyncio.get_running_loop().create_future()

    known.time_thread(answer)
    now += 0.004
    answer.set_result(None)
    await asyncio.sleep(0)

    assert known.thread_seconds == pytest.approx(0.004)
