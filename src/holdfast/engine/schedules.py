"""Setting, listing and controlling schedules. Workers fire them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Unpack

from holdfast.core.clock import moment
from holdfast.core.codec import ANY
from holdfast.core.commands import PauseSchedules, PutSchedules, RemoveSchedules, TriggerSchedule
from holdfast.core.errors import InvalidRequest, ScheduleNotFound, StoreUnavailable
from holdfast.core.ids import new_id
from holdfast.core.intent import is_count
from holdfast.core.questions import ListSchedules
from holdfast.core.schedules import UPCOMING, ScheduleOptions, check_schedule_name, checked_schedule
from holdfast.core.signals import Signal
from holdfast.core.states import RunState
from holdfast.core.suggestion import nearest
from holdfast.engine.async_list import AsyncList
from holdfast.engine.handle import RunHandle
from holdfast.engine.paging import schedule_pages
from holdfast.engine.session import SessionPart
from holdfast.engine.store_info import ScheduleInfo


class Schedules(SessionPart):
    """`hf.schedules`: create, change, list and control the schedules that start runs over time."""

    async def put(
        self,
        name: str,
        workflow: Any,
        /,
        *args: Any,
        cron: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Create a schedule, or change the one with this name. It starts runs of `workflow` with `args`.

            await hf.schedules.put("nightly", report, "sales", cron="0 3 * * *", zone="Europe/Paris")

        `workflow` is a workflow, a task, a bound call, or the name of a type followed by a payload. The schedule fires
        at the times of `cron`, or every `every` seconds (`ScheduleOptions`). Putting it again unchanged has no effect.
        """
        known = self._session.registry.get(workflow) if isinstance(workflow, str) else None
        schedule = checked_schedule(name, workflow, args, cron, options, known=known)
        if (known := self._session.registry.get(schedule.type)) is not None:
            known.signature.decode(
                schedule.payload, f"payload of {schedule.type!r}"
            )  # refuse it now, not when it fires
        await self._session.open()
        (stored,) = await self._session.store.apply(PutSchedules(schedules=[schedule]))
        return ScheduleInfo.of(stored)

    def list(self, *, type: str | None = None, limit: int | None = None) -> AsyncList[ScheduleInfo]:
        """List all schedules, by name. `type` is the name of a type, or a prefix such as `shop.*`."""
        return AsyncList(self._each(type, limit))

    async def _each(self, type: str | None, limit: int | None) -> AsyncIterator[ScheduleInfo]:
        store = await self._session.opened_store()
        async for page in schedule_pages(store, ListSchedules(type=type), limit):
            for schedule in page:
                yield ScheduleInfo.of(schedule)

    async def get(self, name: str) -> ScheduleInfo:
        """Return one schedule. Raises `ScheduleNotFound` if there is none with this name."""
        check_schedule_name(name)
        await self._session.open()
        found = await self._session.store.catalog(ListSchedules(name=name))
        if not found:
            raise await self._not_found(name)
        return ScheduleInfo.of(found[0])

    async def next(self, name: str, count: int = UPCOMING) -> Sequence[datetime]:
        """Return the next `count` times at which a schedule fires, in its own zone. Empty while it is paused."""
        if not is_count(count):
            raise InvalidRequest(f"count={count!r}: expected a whole number of at least 1")
        return (await self.get(name)).next_times(count)

    async def pause(self, name: str) -> bool:
        """Stop a schedule from firing until it is resumed. Returns False if it is paused already."""
        return await self._pause(name, is_paused=True)

    async def resume(self, name: str) -> bool:
        """Let a paused schedule fire again, from its next time on. Returns False if it is not paused."""
        return await self._pause(name, is_paused=False)

    async def _pause(self, name: str, *, is_paused: bool) -> bool:
        await self.get(name)
        (is_changed,) = await self._session.store.apply(PauseSchedules(names=[name], is_paused=is_paused))
        return is_changed

    async def trigger(self, name: str) -> RunHandle[Any]:
        """Start a run of a schedule now, even if it is paused. Its next times do not change."""
        check_schedule_name(name)
        await self._session.open()
        run_id = new_id()
        if not await self._session.store.apply(TriggerSchedule(name=name, run_id=run_id)):
            raise await self._not_found(name)
        if self._session.signals.wants("run.started"):
            await self._tell_triggered(run_id)
        return RunHandle(self._session, run_id, ANY, created=True)

    async def _tell_triggered(self, run_id: str) -> None:
        try:
            details = await self._session.store.get(run_id)
        except StoreUnavailable:
            return  # the schedule was triggered; only the signal is missing
        if details is not None:
            at, type = moment(details.run.created_at), details.run.type
            self._session.signals.give(
                Signal(name="run.started", at=at, run_id=run_id, type=type, state=RunState.PENDING)
            )

    async def remove(self, name: str) -> bool:
        """Remove a schedule. Its runs stay. Returns False if there was none with this name.

        A schedule that code declares with `@hf.schedule` comes back when a worker with that code starts.
        """
        check_schedule_name(name)
        await self._session.open()
        (is_removed,) = await self._session.store.apply(RemoveSchedules(names=[name]))
        return is_removed

    async def _not_found(self, name: str) -> ScheduleNotFound:
        near = nearest(name, [schedule.name async for schedule in self.list(limit=1_000)])
        meant = f"did you mean {near!r}?" if near else "`holdfast schedules ls` and hf.schedules.list() list them"
        return ScheduleNotFound(f"there is no schedule {name!r}; {meant}")
