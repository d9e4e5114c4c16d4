"""The handle on a run, and a selection of runs, for code that blocks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Generic, TypeVar

from holdfast.engine.facade import Facade, blocking
from holdfast.engine.handle import RunHandle
from holdfast.engine.private_loop import PrivateLoop
from holdfast.engine.selection import Selection

R = TypeVar("R")


class SyncRunHandle(Facade, Generic[R]):
    """A handle on one run, for code that blocks. `hf.sync.start` and `hf.sync.run` return it."""

    _target: RunHandle[R]

    def __init__(self, run: RunHandle[R], loop: PrivateLoop) -> None:
        super().__init__("run", run, loop)

    @property
    def id(self) -> str:
        """The id of the run. A handle by key knows it only after its first call; before, this raises `RunNotFound`."""
        return self._target.id

    @property
    def created(self) -> bool:
        """True if the `start` that returned this handle created the run. False if it found the run by key or id."""
        return self._target.created

    def result(self, timeout: float | timedelta | None = None) -> R:
        """Wait until the run ends and return its result. Raises `RunFailed` or `RunCancelled` if it did not succeed.

        Raises `TimeoutError` after `timeout` seconds; the run continues.
        """
        result: R = self._call("result", timeout)
        return result

    def fork(
        self,
        location: str,
        *,
        patch: Mapping[str, Any] | None = None,
        force: bool = False,
        id: str | None = None,
        by: str = "",
    ) -> SyncRunHandle[R]:
        """Start a new run with the history of this one before a location. `patch` replaces recorded results.

        The patch of a flow sets variables, by name.
        """
        return SyncRunHandle(self._call("fork", location, patch=patch, force=force, id=id, by=by), self._loop)

    info = blocking(RunHandle.info)
    history = blocking(RunHandle.history)
    audit = blocking(RunHandle.audit)
    explain = blocking(RunHandle.explain)
    cancel = blocking(RunHandle.cancel)
    pause = blocking(RunHandle.pause)
    resume = blocking(RunHandle.resume)
    wake = blocking(RunHandle.wake)
    rewind = blocking(RunHandle.rewind)
    recover = blocking(RunHandle.recover)
    delete = blocking(RunHandle.delete)
    messages = blocking(RunHandle.messages)
    drop_message = blocking(RunHandle.drop_message)
    send = blocking(RunHandle.send)
    send_in = blocking(RunHandle.send_in)
    request = blocking(RunHandle.request)
    value = blocking(RunHandle.value)

    def __repr__(self) -> str:
        return repr(self._target)


class SyncSelection(Facade):
    """The runs that `hf.sync.runs(…)` selected, to be changed together, for code that blocks."""

    def __init__(self, runs: Selection, loop: PrivateLoop) -> None:
        super().__init__("hf.runs(…)", runs, loop)

    cancel = blocking(Selection.cancel)
    pause = blocking(Selection.pause)
    resume = blocking(Selection.resume)
    wake = blocking(Selection.wake)
    recover = blocking(Selection.recover)
    rewind = blocking(Selection.rewind)
    delete = blocking(Selection.delete)
