"""Waiting in tests: when the guard ends a hang, the error names the awaited condition."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.testing import patience
from holdfast.testing.patience import guard, guarded, until, wait_for, wait_until


@pytest.fixture
def is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the guard end at once."""
    monkeypatch.setattr(patience, "GUARD_SECONDS", 0.0)


@pytest.mark.usefixtures("is_short")
async def test_the_guard_names_the_awaited_condition() -> None:
    with pytest.raises(AssertionError, match="still waiting until the door opens"):
        await guarded("the door opens", asyncio.Event().wait())
    with pytest.raises(AssertionError, match="still waiting until it rains: 3 clouds"):
        await until("it rains", lambda: False, report="{}: 3 clouds".format)
    with pytest.raises(AssertionError, match="still waiting until the bell rings"):
        wait_until("the bell rings", lambda: False)
    for never in (threading.Event(), threading.Semaphore(0)):
        with pytest.raises(AssertionError, match="still waiting until the thread is done"):
            wait_for("the thread is done", never)


async def test_the_guard_hides_no_other_failure() -> None:
    with pytest.raises(TimeoutError, match="of its own"):
        async with guard("the block ends"):
            raise TimeoutError("of its own")


async def test_a_condition_that_comes_in_time_is_not_disturbed() -> None:
    answers = [True, False]

    async def is_so() -> bool:
        return answers.pop()

    await until("the second answer comes", is_so)
    wait_until("it is so", lambda: True)
    wait_for("somebody has released it", threading.Semaphore(1))

    assert answers == []
    assert await guarded("a result comes", asyncio.sleep(0, "result")) == "result"
