"""The read side of the store port on Postgres. It holds no SQL, and says nowhere how a statement reaches the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from holdfast.core.checkpoint import Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import (
    AuditFact,
    Backlog,
    DeadLetter,
    Entry,
    Holding,
    Run,
    Schedule,
    Topic,
    TypeRule,
    WorkerInfo,
)
from holdfast.core.ports import Details, Due, Finding, LetterQuery, Query, ScheduleQuery, SlotUse
from holdfast.core.states import RunState
from holdfast.core.transfer import Dump, KeptEvent
from holdfast.stores.postgres import backlogs, checkup, leases, listing, reads, schedules, transfers
from holdfast.stores.postgres import topics as topic_rules
from holdfast.stores.postgres.talks import Connection, Talk

FEW = 8
"""So many runs are asked about at most in one go on the loop."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Reading:
    """What people and workers ask a store about. A store has to say how something is read, and what time it is."""

    @property
    def _at(self) -> Micros | None:
        """The time of an operation, if it is not for the server to say."""
        raise NotImplementedError

    def _read(
        self, function: Callable[Concatenate[Connection, str, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_R]:
        """Have something read, given a connection and the name of the schema."""
        raise NotImplementedError

    def _ask(self, talk: Callable[[], Talk[_R]]) -> asyncio.Future[_R]:
        """Have something small read, which is said in a moment."""
        raise NotImplementedError

    @property
    def _schema(self) -> str:
        raise NotImplementedError

    async def get(self, run_id: str) -> Details | None:
        return await self._read(reads.get, run_id)

    async def find(self, key: str) -> str | None:
        return await self._read(reads.find, key)

    async def list(self, query: Query) -> Sequence[Details]:
        return await self._read(listing.list_runs, query)

    async def history(self, run_id: str) -> Sequence[Entry]:
        return await self._read(reads.history, run_id)

    async def audit(self, run_id: str) -> Sequence[AuditFact]:
        return await self._read(reads.audit, run_id)

    async def ends(self, run_ids: Sequence[str]) -> Sequence[Run]:
        if len(run_ids) <= FEW:
            return await self._ask(lambda: reads.few_ends(self._schema, run_ids))
        return await self._read(reads.ends, run_ids)

    async def look(self, holdings: Sequence[Holding]) -> Verdicts:
        return await self._read(leases.look, holdings, self._at)

    async def replies(self, asked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        return await self._read(reads.replies, asked)

    async def topics(self) -> Sequence[Topic]:
        return await self._read(topic_rules.list_topics)

    async def types(self) -> Sequence[TypeRule]:
        return await self._read(reads.types)

    async def slots(self, type: str | None = None) -> Sequence[SlotUse]:
        return await self._read(reads.slots, type)

    async def dead_letters(self, query: LetterQuery) -> Sequence[DeadLetter]:
        return await self._read(reads.dead_letters, query)

    async def dump(self, run_ids: Sequence[str]) -> Sequence[Dump]:
        return await self._read(transfers.dump, run_ids)

    async def kept_events(self, after: int, limit: int) -> Sequence[KeptEvent]:
        return await self._read(transfers.kept_events, after, limit)

    async def last_event(self) -> int:
        return await self._read(transfers.last_event)

    async def schedules(self, query: ScheduleQuery) -> Sequence[Schedule]:
        return await self._read(schedules.list_schedules, query)

    async def due_schedules(self, limit: int, after: tuple[Micros, str] = (0, "")) -> Due:
        return await self._read(schedules.due, limit, after, self._at)

    async def counts(self) -> dict[str, dict[RunState, int]]:
        return await self._read(reads.counts)

    async def backlog(self) -> Sequence[Backlog]:
        return await self._read(backlogs.backlog, self._at)

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._read(reads.workers)

    async def held(self) -> dict[str, int]:
        return await self._read(backlogs.held)

    async def orphans(self, limit: int) -> Sequence[str]:
        return await self._read(reads.orphans, limit)

    async def check(self) -> Sequence[Finding]:
        return await self._read(checkup.findings)
