"""Waiting for replies: what a run answers to a message, or that it ended without a word."""

from __future__ import annotations

from holdfast.core.hint import Hint
from holdfast.engine.lookout import Lookout


class Replies(Lookout[tuple[str, str], str | None]):
    """Everybody in this process who waits for a reply, by run and message."""

    async def wait(self, run_id: str, message_id: str) -> str | None:
        """The reply, when it comes; None if the run ends without one."""
        return await self._await((run_id, message_id), 0)

    def _hear(self, hint: Hint) -> None:
        if not self._waiters:
            return
        told = hint.replied | hint.ended
        if hint.is_elsewhere or any(run_id in told for run_id, _ in self._waiters):
            self._look_in(0)

    async def _look(self) -> None:
        asked = list(self._waiters)
        # Ends first: a run that had ended by then has no reply but those the second question finds.
        ended = {run.id for run in await self._store.ends(list({run_id for run_id, _ in asked}))}
        replies = await self._store.replies(asked)
        for pair in asked:
            if pair in replies:
                self._resolve(pair, replies[pair])
            elif pair[0] in ended:
                self._resolve(pair, None)
