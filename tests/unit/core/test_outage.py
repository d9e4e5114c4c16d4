"""An outage: its log lines, and the retries during it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice

import pytest

from holdfast.core import outage as module
from holdfast.core.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.core.outage import Outage, pauses

LOG = logging.getLogger("holdfast.test")


class Watch:
    """A clock that the test sets."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def outage(watch: Watch, caplog: pytest.LogCaptureFixture) -> Outage:
    caplog.set_level(logging.DEBUG, LOG.name)
    return Outage(LOG, "cannot claim; trying again", "claiming works again", now=watch)


def noted(text: str) -> StoreUnavailable:
    """An error whose begin and end the store logs itself."""
    error = StoreUnavailable(text)
    error.is_noted = True
    return error


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


# What is logged


def test_the_first_failure_and_the_end_are_logged(
    outage: Outage, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1_000):
        outage.failed(StoreUnavailable("away"))
        watch.seconds += 0.25
    outage.worked()
    outage.worked()

    assert told(caplog) == [
        ("WARNING", "cannot claim; trying again: away"),
        ("WARNING", "claiming works again after 250.0 s"),
    ]


def test_every_outage_is_logged(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for text in ("first", "second"):
        outage.failed(StoreUnavailable(text))
        outage.worked()

    assert [text for _, text in told(caplog)] == [
        "cannot claim; trying again: first",
        "claiming works again after 0.0 s",
        "cannot claim; trying again: second",
        "claiming works again after 0.0 s",
    ]


def test_a_call_that_always_works_logs_nothing(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.worked()

    assert told(caplog) == []
    assert not outage.is_ongoing


def test_an_outage_is_ongoing_from_the_first_failure_to_its_end(outage: Outage) -> None:
    outage.failed(StoreUnavailable("away"))
    was_ongoing = outage.is_ongoing
    outage.worked()

    assert (was_ongoing, outage.is_ongoing) == (True, False)


def test_an_error_that_the_store_logs_is_repeated_for_debugging_only(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failed(noted("away"))
    outage.worked()

    assert [level for level, _ in told(caplog)] == ["DEBUG", "DEBUG"]


def test_an_error_with_advice_is_logged_without_its_traceback(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.failed(SchemaOutOfDate("run `holdfast migrate`"))

    assert told(caplog) == [("WARNING", "cannot claim; trying again: run `holdfast migrate`")]
    assert caplog.records[0].exc_info is None


def test_a_bug_is_logged_with_its_traceback(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    error = RuntimeError("a bug")
    outage.failed(error)
    outage.worked()

    assert told(caplog) == [
        ("ERROR", "cannot claim; trying again: a bug"),
        ("WARNING", "claiming works again after 0.0 s"),
    ]
    info = caplog.records[0].exc_info
    assert info is not None
    assert info[1] is error


def test_a_failure_that_is_worse_than_the_first_is_logged_too(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    errors = [noted("away"), StoreUnavailable("a table is missing"), noted("away"), RuntimeError("a bug")]
    for error in (*errors, *errors):
        outage.failed(error)
    outage.worked()

    assert told(caplog) == [
        ("DEBUG", "cannot claim; trying again: away"),
        ("WARNING", "cannot claim; trying again: a table is missing"),
        ("ERROR", "cannot claim; trying again: a bug"),
        ("WARNING", "claiming works again after 0.0 s"),
    ]


# Pauses and retries


def test_pauses_grow_up_to_a_limit() -> None:
    assert list(islice(pauses(0.1, 0.5), 5)) == [0.1, 0.2, 0.4, 0.5, 0.5]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the requested pauses; they take no time."""
    slept: list[float] = []

    def noting() -> Iterator[float]:
        for seconds in pauses():
            slept.append(seconds)
            yield 0.0

    monkeypatch.setattr(module, "pauses", noting)
    return slept


def answering(*answers: int | Exception) -> Callable[[], Awaitable[int]]:
    """A call that returns these answers one after the other."""
    left: Iterator[int | Exception] = iter(answers)

    async def call() -> int:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


AWAY = StoreUnavailable("away")


async def test_a_call_is_repeated_until_the_store_answers(
    outage: Outage, slept: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert await outage.retry(answering(AWAY, AWAY, AWAY, 7)) == 7

    assert slept == list(islice(pauses(), 3))
    assert [text for _, text in told(caplog)] == [
        "cannot claim; trying again: away",
        "claiming works again after 0.0 s",
    ]


async def test_a_call_that_works_neither_waits_nor_logs(
    outage: Outage, slept: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    assert await outage.retry(answering(7)) == 7

    assert (slept, told(caplog)) == ([], [])


async def test_a_refusal_is_raised_and_ends_the_outage(outage: Outage, slept: list[float]) -> None:
    with pytest.raises(ValueError, match="refused"):
        await outage.retry(answering(AWAY, ValueError("refused")))

    assert not outage.is_ongoing


async def test_a_call_that_works_at_once_does_not_end_the_outage_of_another(
    outage: Outage, slept: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()

    async def held_up() -> int:
        if not gate.is_set():
            raise AWAY
        return 1

    waiting = asyncio.create_task(outage.retry(held_up))
    while not slept:
        await asyncio.sleep(0)
    for _ in range(10):
        await outage.retry(answering(2))
    assert outage.is_ongoing

    gate.set()
    assert await waiting == 1
    assert [text for _, text in told(caplog)] == [
        "cannot claim; trying again: away",
        "claiming works again after 0.0 s",
    ]


async def test_a_retry_that_is_cancelled_does_not_silence_the_next_outage(
    outage: Outage, slept: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    async def away() -> int:
        raise AWAY

    waiting = asyncio.create_task(outage.retry(away))
    while not slept:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])

    await outage.retry(answering(AWAY, 7))

    assert [text for _, text in told(caplog)] == [
        "cannot claim; trying again: away",
        "cannot claim; trying again: away",
        "claiming works again after 0.0 s",
    ]
