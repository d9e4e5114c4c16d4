"""The end of an event loop: an action that is called when the loop is shut down, after all of its tasks have ended.

At that time `asyncio.run` closes the asynchronous generators of its loop, and so do the runners of other libraries.
Here a generator waits for it at its only `yield`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any


class LoopEnd:
    """Calls `action` when the running loop is shut down, unless it was forgotten before."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self._generator = self._wait()
        _finish(self._generator.__anext__())  # now the loop knows it

    def forget(self) -> None:
        """Do not call the action."""
        if self._action is not None:
            self._action = None
            _finish(self._generator.aclose())

    async def _wait(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            action, self._action = self._action, None
            if action is not None:
                action()


def _finish(step: Coroutine[Any, Any, None]) -> None:
    """Carry out a step of a generator at once. It awaits nothing."""
    try:
        step.send(None)
    except StopIteration:
        return
    raise AssertionError("the generator awaits something")
