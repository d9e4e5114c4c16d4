"""Results: waits for runs to end. Ends in this process are known from memory, others from one shared poller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from holdfast.core.checkpoint import Finish
from holdfast.core.errors import ErrorRecord
from holdfast.core.hint import Hint
from holdfast.core.model import Run
from holdfast.core.ports import Store
from holdfast.core.questions import EndsOf
from holdfast.core.states import RunState
from holdfast.engine.polling import POLL_SECONDS, Poller

_SOON_SECONDS = 0.005
_REMEMBERED = 1_000
_REMEMBERED_BYTES = 64 * 1024


class End(msgspec.Struct, frozen=True):
    """The end of a run: its state, and its result or error."""

    state: RunState
    result: str | None
    error: ErrorRecord | None

    @classmethod
    def of(cls, ended: Run | Finish) -> End:
        return cls(RunState(ended.state), ended.result, ended.error)


class Results(Poller[str, End]):
    """All waiters of this process for ends of runs."""

    awaited = "results"

    def __init__(self, store: Store, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._recent: OrderedDict[str, End] = OrderedDict()
        super().__init__(store, poll_seconds=poll_seconds)

    def note(self, run_id: str, finish: Finish) -> None:
        """Note that a run has ended in this process and that its end is committed."""
        end = End.of(finish)
        self._resolve(run_id, end)
        if len(end.result or "") <= _REMEMBERED_BYTES:
            self._recent[run_id] = end
            if len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)

    async def wait(self, run_id: str, *, is_fresh: bool = False) -> End:
        """Wait for the end of a run. `is_fresh` means that it was just started here, so `note` likely comes soon."""
        if (known := self._recent.get(run_id)) is not None:
            return known
        return await self._await(run_id, _SOON_SECONDS if is_fresh else 0)

    def forget(self, run_id: str) -> None:
        """Forget the end of a run that was reopened."""
        self._recent.pop(run_id, None)

    def _hear(self, hint: Hint) -> None:
        if hint.is_elsewhere or hint.is_foreign:
            self._recent.clear()  # another process may have reopened runs that ended here
        if hint.is_elsewhere:
            self._look_for_all()
        elif ended := [run_id for run_id in hint.ended if run_id in self._waiters]:
            # `note` has most likely resolved a run of this process by then, without a read.
            self._look_for(ended, 0 if hint.is_foreign else _SOON_SECONDS)

    async def _look(self, keys: Sequence[str]) -> None:
        for run in await self._store.changes(EndsOf(run_ids=keys)):
            self._resolve(run.id, End.of(run))
