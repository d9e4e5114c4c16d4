"""Waiting for replies of runs to messages, or for the end of a run without a reply."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.hint import Hint
from holdfast.core.questions import EndsOf, RepliesTo
from holdfast.engine.polling import Poller


class Replies(Poller[tuple[str, str], str | None]):
    """All waiters of this process for replies, by run and message."""

    awaited = "replies"

    async def wait(self, run_id: str, message_id: str) -> str | None:
        """Wait for the reply and return it. None if the run ends without one."""
        return await self._await((run_id, message_id), 0)

    def _hear(self, hint: Hint) -> None:
        if hint.is_elsewhere:
            self._look_for_all()
        elif pairs := [pair for pair in self._waiters if pair[0] in hint.replied or pair[0] in hint.ended]:
            self._look_for(pairs, 0)

    async def _look(self, keys: Sequence[tuple[str, str]]) -> None:
        # Read the ends first: the second read then finds every reply of a run that had ended by the first.
        ended = {run.id for run in await self._store.changes(EndsOf(run_ids=list({run_id for run_id, _ in keys})))}
        replies = await self._store.changes(RepliesTo(messages=keys))
        for pair in keys:
            run_id, message_id = pair
            reply = replies.get(run_id, {}).get(message_id)
            if reply is not None or run_id in ended:
                self._resolve(pair, reply)
