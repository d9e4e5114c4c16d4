"""Declared schedules: those that stand in code, above the workflows and tasks they start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, Unpack

from holdfast.core.errors import InvalidRequest
from holdfast.core.model import Schedule
from holdfast.core.schedules import ScheduleOptions, checked_schedule

D = TypeVar("D")


class DeclaredSchedules:
    """Schedules by name, its own and those of others that were taken in."""

    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}
        self._others: list[DeclaredSchedules] = []

    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[D], D]:
        """Start runs over time: put `@registry.schedule("0 3 * * *")` above `@registry.workflow` or `@registry.task`.

        It fires at the times of the `cron` expression, or every `every` seconds (`ScheduleOptions`). `args` are the
        arguments of the function. `name` is the name of the schedule, by default the type. A worker puts the schedule
        into the store when it starts.
        """

        def declare(definition: D) -> D:
            known_as = getattr(definition, "type", "") if name is None else name
            schedule = checked_schedule(known_as, definition, args, cron, options, is_declared=True)
            self._check_free([schedule])
            self._schedules[schedule.name] = schedule
            return definition

        return declare

    def schedules(self) -> Iterator[Schedule]:
        """All schedules that stand in the code."""
        yield from self._schedules.values()
        for other in self._others:
            yield from other.schedules()

    def take_in(self, other: DeclaredSchedules) -> None:
        """Have the schedules of another one, too, and those it will have."""
        self._check_free(other.schedules())
        self._others.append(other)

    def _check_free(self, schedules: Iterator[Schedule] | list[Schedule]) -> None:
        taken = {schedule.name for schedule in self.schedules()}
        for schedule in schedules:
            if schedule.name in taken:
                raise InvalidRequest(f"there is a schedule {schedule.name!r} already; give one of them another name=…")
