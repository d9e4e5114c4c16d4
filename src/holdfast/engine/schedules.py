"""Schedules: set, seen and taken in hand by programs and people. Workers fire them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Unpack

from holdfast.core.clock import moment
from holdfast.core.commands import PauseSchedules, PutSchedules, RemoveSchedules, TriggerSchedule
from holdfast.core.errors import ScheduleNotFound, StoreUnavailable
from holdfast.core.ids import new_id
from holdfast.core.questions import ListSchedules
from holdfast.core.schedules import ScheduleOptions, check_schedule_name, checked_schedule
from holdfast.core.signals import Signal
from holdfast.core.states import RunState
from holdfast.engine.base import EngineBase
from holdfast.engine.info import ScheduleInfo
from holdfast.engine.paging import schedule_pages
from holdfast.runner.registry import Registry


class ScheduleVerbs(EngineBase):
    """The part of an engine that looks after schedules."""

    registry: Registry

    async def put_schedule(
        self,
        name: str,
        workflow: Any,
        /,
        *args: Any,
        cron: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Have a workflow or task run over time, under a name; one of that name is changed to this.

        At the times of a `cron` expression in a `zone` (default UTC), or `every` so many seconds from now on; for the
        other options see `ScheduleOptions`. Setting it again as it is disturbs nothing.
        """
        schedule = checked_schedule(name, workflow, args, cron, options)
        if (known := self.registry.get(schedule.type)) is not None:
            known.signature.decode(schedule.payload, f"payload of {schedule.type!r}")  # refused now, not in the night
        await self.opened()
        (stored,) = await self.store.apply(PutSchedules(schedules=[schedule]))
        return ScheduleInfo.of(stored)

    async def schedules(self, *, type: str | None = None, limit: int | None = None) -> AsyncIterator[ScheduleInfo]:
        """All schedules, by name. `type` may end in `.*`."""
        await self.opened()
        async for page in schedule_pages(self.store, ListSchedules(type=type), limit):
            for schedule in page:
                yield ScheduleInfo.of(schedule)

    async def get_schedule(self, name: str) -> ScheduleInfo:
        """A schedule as it stands; `ScheduleNotFound` if there is none of this name."""
        check_schedule_name(name)
        await self.opened()
        found = await self.store.catalog(ListSchedules(name=name))
        if not found:
            raise _not_found(name)
        return ScheduleInfo.of(found[0])

    async def pause_schedule(self, name: str) -> bool:
        """Have a schedule fire no more until it is resumed; False if it was paused already."""
        return await self._pause(name, is_paused=True)

    async def resume_schedule(self, name: str) -> bool:
        """Have a paused schedule fire again, from the next slot on; False if it was not paused."""
        return await self._pause(name, is_paused=False)

    async def _pause(self, name: str, *, is_paused: bool) -> bool:
        await self.get_schedule(name)
        (is_changed,) = await self.store.apply(PauseSchedules(names=[name], is_paused=is_paused))
        return is_changed

    async def triggered(self, name: str) -> str:
        """Start a run of a schedule; its id."""
        check_schedule_name(name)
        await self.opened()
        run_id = new_id()
        if not await self.store.apply(TriggerSchedule(name=name, run_id=run_id)):
            raise _not_found(name)
        if self.signals.wants("run.started"):
            await self._tell_triggered(run_id)
        return run_id

    async def _tell_triggered(self, run_id: str) -> None:
        try:
            details = await self.store.get(run_id)
        except StoreUnavailable:
            return  # it is done all the same
        if details is not None:
            at, type = moment(details.run.created_at), details.run.type
            self.signals.give(Signal(name="run.started", at=at, run_id=run_id, type=type, state=RunState.PENDING))

    async def remove_schedule(self, name: str) -> bool:
        """Forget a schedule, not its runs; False if there was none.

        One that stands in code comes back when a worker with that code starts.
        """
        check_schedule_name(name)
        await self.opened()
        (is_removed,) = await self.store.apply(RemoveSchedules(names=[name]))
        return is_removed


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r}; `holdfast schedules ls` lists them")
