"""Branches: parts of a workflow that run side by side, each in a scope of its own, and how they are brought together.

Which branch wins follows from the order of recorded results, as everything on a run's loop does. Whoever loses is
cancelled at once and nobody waits for it, even if it takes no notice.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import InvalidRequest, JoinFailed, RaceFailed, Rollback
from holdfast.core.location import check_name
from holdfast.runner.task import RunTask

if TYPE_CHECKING:
    from holdfast.runner.code_requests import CodeRequests
    from holdfast.runner.context import Context

Branch = Callable[["Context"], Awaitable[Any]]


class Branches:
    """The branches of one operation: checked when it is called, started when it is awaited."""

    def __init__(self, requests: CodeRequests, location: str, branches: Mapping[str, Branch]) -> None:
        self._requests = requests
        self._location = location
        self._branches = _checked(location, branches)
        self._tasks: dict[str, RunTask] = {}

    async def join(self, *, fail_fast: bool) -> dict[str, Any]:
        """The results of all by key; `JoinFailed` if any failed, at once if it shall fail fast."""
        if not self._branches:
            return {}
        await self._run_until(_failed if fail_fast else _rolls_back)
        # Those cancelled just now have not ended yet; they are in neither.
        errors = {key: _raised_by(task) for key, task in self._tasks.items() if _failed(task)}
        results = {key: task.result() for key, task in self._tasks.items() if _succeeded(task)}
        if errors:
            raise JoinFailed(self._location, results, errors)
        return results

    async def race(self) -> tuple[str, Any]:
        """Key and result of the first to succeed; `RaceFailed` if none does."""
        first = await self._run_until(_succeeded)
        if not _succeeded(first):
            raise RaceFailed(self._location, {key: _raised_by(task) for key, task in self._tasks.items()})
        return self._key_of(first), first.result()

    async def first_settled(self) -> tuple[str, Any]:
        """Key and result of the first to end, or its error."""
        first = await self._run_until(asyncio.Task.done)
        if (error := _error_of(first)) is not None:
            raise error
        return self._key_of(first), first.result()

    async def _run_until(self, is_decisive: Callable[[RunTask], bool]) -> RunTask:
        """Run all until one is decisive, or the last has ended; give that one, and cancel the others."""
        loop = self._requests.loop
        scope = loop.scope
        left = len(self._branches)
        decided: asyncio.Future[RunTask] = loop.create_future()

        def ended(task: RunTask) -> None:
            nonlocal left
            left -= 1
            _error_of(task)  # looked at, so that a loser's is not reported as forgotten
            if not decided.done() and (left == 0 or is_decisive(task) or _rolls_back(task)):
                decided.set_result(task)

        for key, branch in self._branches.items():
            coroutine = _called(branch, self._requests.context)
            self._tasks[key] = loop.create_branch(coroutine, scope.branch(self._location, key))
        for task in self._tasks.values():
            task.add_done_callback(ended)
        try:
            first = await decided
        finally:
            for task in self._tasks.values():
                task.cancel()
        if _rolls_back(first):
            first.result()  # raises: a wish to roll back goes through, whoever else is still at work
        return first

    def _key_of(self, task: RunTask) -> str:
        return next(key for key, one in self._tasks.items() if one is task)


def check_some(location: str, branches: object) -> None:
    """Refuse a race of nobody, which could never end."""
    if isinstance(branches, Mapping) and not branches:
        raise InvalidRequest(f"{location!r} has no branches, so none of them could ever win")


def _checked(location: str, branches: Any) -> dict[str, Branch]:
    """The branches, if they are functions by name. Coroutines are refused, and closed as nobody will await them."""
    if not isinstance(branches, Mapping):
        raise InvalidRequest(f"branches of {location!r} are given as a dict of functions by key, not {branches!r}")
    wrong = {key: branch for key, branch in branches.items() if not callable(branch)}
    for branch in wrong.values():
        if inspect.iscoroutine(branch):
            branch.close()
    for key, branch in wrong.items():
        raise InvalidRequest(
            f"branch {key!r} of {location!r} must be a function that takes ctx, such as `async def work(ctx)`, "
            f"not {type(branch).__name__}: give the function itself, do not call it"
        )
    return {check_name(key, "key of a branch"): branch for key, branch in branches.items()}


async def _called(branch: Branch, context: Context) -> Any:
    # Called inside the task: what it asks for before its first await belongs to its scope, too.
    result: Any = branch(context)
    return await result if inspect.isawaitable(result) else result


def _error_of(task: RunTask) -> BaseException | None:
    """What a branch raised, if it has ended."""
    return task.exception() if task.done() and not task.cancelled() else None


def _raised_by(task: RunTask) -> BaseException:
    return _error_of(task) or asyncio.CancelledError("the branch cancelled itself")


def _failed(task: RunTask) -> bool:
    return task.done() and not _succeeded(task)


def _succeeded(task: RunTask) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _rolls_back(task: RunTask) -> bool:
    return isinstance(_error_of(task), Rollback)
