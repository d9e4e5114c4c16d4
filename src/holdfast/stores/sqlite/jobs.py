"""Jobs: the operations that callers hand to the store's threads, and the delivery of their answers.

A caller waits on its own event loop, or blocks its own thread. Answers of one batch go to each loop in one call,
because waking a loop costs more than most operations do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from holdfast.core.errors import StoreUnavailable
from holdfast.core.hint import Hint
from holdfast.stores.loops import call_on

ANSWER_SECONDS = 60.0

_Unit = TypeVar("_Unit")
_Answer = TypeVar("_Answer")

Listener = tuple[asyncio.AbstractEventLoop, Callable[[Hint], None]]


class Job(Generic[_Unit]):
    """An operation and the future of its caller. The thread skips a job whose caller has given up."""

    __slots__ = ("future", "is_urgent", "limit", "operation")

    def __init__(
        self,
        operation: Callable[[_Unit], Any],
        future: asyncio.Future[Any] | concurrent.futures.Future[Any],
        *,
        is_urgent: bool = False,
        limit: asyncio.TimerHandle | None = None,
    ) -> None:
        self.operation = operation
        self.future = future
        self.is_urgent = is_urgent
        self.limit = limit


class JobOutcome:
    """The result of a job: an answer or an error."""

    __slots__ = ("answer", "error", "job")

    def __init__(self, job: Job[Any], answer: Any = None, error: Exception | None = None) -> None:
        self.job = job
        self.answer = answer
        self.error = error


class Round:
    """Allows one operation per iteration of an event loop to run on the loop itself.

    Further operations of the same iteration share a commit in the thread. A caller that awaits one operation after
    another leaves the loop time for other tasks.
    """

    def __init__(self) -> None:
        self._is_taken = False

    def take(self) -> bool:
        """Take this iteration of the running loop. Returns False if it is already taken."""
        if self._is_taken:
            return False
        self._is_taken = True
        asyncio.get_running_loop().call_soon(self._end)
        return True

    def _end(self) -> None:
        self._is_taken = False


def ask(jobs: SimpleQueue[Any], operation: Callable[[_Unit], _Answer]) -> asyncio.Future[_Answer]:
    """Queue an operation. Its future gets an answer, or an error after `ANSWER_SECONDS`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Answer] = loop.create_future()
    jobs.put(Job(operation, future, limit=loop.call_later(ANSWER_SECONDS, give_up, future)))
    return future


def ask_blocking(jobs: SimpleQueue[Any], operation: Callable[[_Unit], _Answer]) -> _Answer:
    """Queue an operation ahead of those of `ask`, and block this thread until it is answered."""
    future: concurrent.futures.Future[_Answer] = concurrent.futures.Future()
    jobs.put(Job(operation, future, is_urgent=True))
    try:
        return future.result(ANSWER_SECONDS)
    except concurrent.futures.TimeoutError:
        future.cancel()
        raise _unanswered() from None


def tell(outcomes: Iterable[JobOutcome], hint: Hint | None = None, listeners: Iterable[Listener] = ()) -> None:
    """Deliver outcomes and a hint to their event loops, in one call per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, tuple[list[JobOutcome], list[Callable[[Hint], None]]]] = {}
    for outcome in outcomes:
        future = outcome.job.future
        if isinstance(future, asyncio.Future):
            by_loop.setdefault(future.get_loop(), ([], []))[0].append(outcome)
        else:
            settle(outcome)
    if hint is not None:
        for loop, listener in listeners:
            by_loop.setdefault(loop, ([], []))[1].append(listener)
    for loop, (settled, hinted) in by_loop.items():
        call_on(loop, _receive, loop, settled, hint, hinted)  # if it is closed, its callers are gone


def _receive(
    loop: asyncio.AbstractEventLoop,
    outcomes: list[JobOutcome],
    hint: Hint | None,
    listeners: list[Callable[[Hint], None]],
) -> None:
    for outcome in outcomes:
        settle(outcome)
    if hint is not None:
        for listener in listeners:
            loop.call_soon(listener, hint)  # separately, so that a listener that raises does not stop the next


def settle(outcome: JobOutcome) -> None:
    """Give a caller its answer. For an asyncio future, call it on the thread of the future's loop."""
    future, limit = outcome.job.future, outcome.job.limit
    if limit is not None:
        limit.cancel()
    if future.done():  # its caller was cancelled or has given up
        return
    if outcome.error is not None:
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.answer)


def give_up(future: asyncio.Future[Any]) -> None:
    """Fail a future that has waited for `ANSWER_SECONDS`."""
    if not future.done():
        future.set_exception(_unanswered())


def _unanswered() -> StoreUnavailable:
    return StoreUnavailable(
        f"the database did not answer within {ANSWER_SECONDS:g} s; the operation may or may not have happened; "
        "you can repeat it"
    )
