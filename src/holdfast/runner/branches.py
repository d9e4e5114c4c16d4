"""Branches: parts of a workflow that run side by side, each in its own scope (`join`, `race`, `first_settled`).

The order of recorded results decides which branch wins. A losing branch is cancelled at once. The operation does not
wait for it, even if the branch ignores the cancellation.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import InvalidRequest, JoinFailed, RaceFailed, Rollback
from holdfast.core.location import check_name
from holdfast.runner.loop import RunTask

if TYPE_CHECKING:
    from holdfast.runner.code_requests import CodeRequests
    from holdfast.runner.context import Context

Branch = Callable[["Context"], Awaitable[Any]]


class Branches:
    """The branches of one operation. They are checked when it is called, and started when it is awaited."""

    def __init__(self, requests: CodeRequests, location: str, branches: Mapping[str, Branch]) -> None:
        self._requests = requests
        self._location = location
        self._branches = _checked(location, branches)
        self._tasks: dict[str, RunTask] = {}

    async def join(self, *, fail_fast: bool) -> dict[str, Any]:
        """Return the results of all branches by key. Raises `JoinFailed` if any failed, at once with `fail_fast`."""
        if not self._branches:
            return {}
        await self._run_until(_failed if fail_fast else _rolls_back)
        # Branches that were cancelled just now have not ended yet. They are in neither dict.
        errors = {key: _raised_by(task) for key, task in self._tasks.items() if _failed(task)}
        results = {key: task.result() for key, task in self._tasks.items() if _succeeded(task)}
        if errors:
            raise JoinFailed(self._location, results, errors)
        return results

    async def race(self) -> tuple[str, Any]:
        """Return key and result of the first branch that succeeds. Raises `RaceFailed` if none does."""
        first = await self._run_until(_succeeded)
        if not _succeeded(first):
            raise RaceFailed(self._location, {key: _raised_by(task) for key, task in self._tasks.items()})
        return self._key_of(first), first.result()

    async def first_settled(self) -> tuple[str, Any]:
        """Return key and result of the first branch that ends, or raise its error."""
        first = await self._run_until(asyncio.Task.done)
        if (error := _error_of(first)) is not None:
            raise error
        return self._key_of(first), first.result()

    async def _run_until(self, is_decisive: Callable[[RunTask], bool]) -> RunTask:
        """Run all branches until one is decisive or the last has ended. Return that one and cancel the others."""
        loop = self._requests.loop
        scope = loop.scope
        left = len(self._branches)
        decided: asyncio.Future[RunTask] = loop.create_future()

        def ended(task: RunTask) -> None:
            nonlocal left
            left -= 1
            _error_of(task)  # retrieved, so that asyncio does not log the error of a loser
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
            first.result()  # raises `Rollback`, which wins even while other branches are running
        return first

    def _key_of(self, task: RunTask) -> str:
        return next(key for key, one in self._tasks.items() if one is task)


def check_some(location: str, branches: object) -> None:
    """Refuse a race without branches, which could never end."""
    if isinstance(branches, Mapping) and not branches:
        raise InvalidRequest(f"{location!r} has no branches, so none of them could win; pass at least one")


def _checked(location: str, branches: Any) -> dict[str, Branch]:
    """Return the branches, if they are functions by name. Coroutines are refused, and closed to avoid a warning."""
    if not isinstance(branches, Mapping):
        raise InvalidRequest(f"branches of {location!r}: expected a dict of functions by key, got {branches!r}")
    wrong = {key: branch for key, branch in branches.items() if not callable(branch)}
    for branch in wrong.values():
        if inspect.iscoroutine(branch):
            branch.close()
    for key, branch in wrong.items():
        raise InvalidRequest(
            f"branch {key!r} of {location!r} must be a function that takes ctx, such as `async def work(ctx)`, "
            f"not {type(branch).__name__}: pass the function itself, do not call it"
        )
    return {check_name(key, "key of a branch"): branch for key, branch in branches.items()}


async def _called(branch: Branch, context: Context) -> Any:
    # Call the branch inside its task, so that requests before its first await also belong to its scope.
    result: Any = branch(context)
    return await result if inspect.isawaitable(result) else result


def _error_of(task: RunTask) -> BaseException | None:
    """Return the error that a branch raised. None if it has not ended, or ended otherwise."""
    return task.exception() if task.done() and not task.cancelled() else None


def _raised_by(task: RunTask) -> BaseException:
    return _error_of(task) or asyncio.CancelledError("the branch cancelled itself")


def _failed(task: RunTask) -> bool:
    return task.done() and not _succeeded(task)


def _succeeded(task: RunTask) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _rolls_back(task: RunTask) -> bool:
    return isinstance(_error_of(task), Rollback)
