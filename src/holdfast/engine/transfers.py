"""Transfers: the part of an engine that moves runs from one store to another."""

from __future__ import annotations

from typing import Unpack

from holdfast.core.errors import InvalidRequest
from holdfast.engine.base import EngineBase
from holdfast.engine.controls import check_actor, check_reason
from holdfast.engine.export import Export, Told
from holdfast.engine.importing import Import, ImportReport, Lines
from holdfast.engine.queries import Filter

TIMEOUT_SECONDS = 60.0


class TransferVerbs(EngineBase):
    """Runs as lines of JSON, out of this store or into it."""

    def export(
        self,
        *,
        live: bool = True,
        timeout: float = TIMEOUT_SECONDS,
        reason: str = "exported",
        by: str = "",
        told: Told | None = None,
        **chosen: Unpack[Filter],
    ) -> Export:
        """Runs as lines of JSON, for `import_` on another store; the conditions are those of `list`.

        Live runs are paused first, for `reason`, and stay paused here; a run that a worker does not let go of within
        `timeout` seconds is left, with all that belongs to it. With conditions, live parents and children of those they
        choose go too. `live=False` exports only runs that have ended, and changes nothing. `told` is called with what
        is going on. Iterate over the lines once; afterwards `counts`, `left` and `taken_along` tell what they were.
        """
        if unknown := chosen.keys() - Filter.__annotations__.keys():
            raise InvalidRequest(
                f"unknown condition {', '.join(sorted(unknown))}; there are {', '.join(Filter.__annotations__)}"
            )
        return Export(
            self,
            chosen,
            store_kind=type(self.store).__name__.removesuffix("Store").lower(),
            version=_version(),
            is_live=live,
            timeout_seconds=timeout,
            reason=check_reason(reason),
            by=check_actor(by),
            told=told or _say_nothing,
        )

    async def import_(self, lines: Lines, *, by: str = "", told: Told | None = None) -> ImportReport:
        """Take in the lines of an export. Runs that are there already are left as they are, so it may be repeated.

        When all lines are there, what the export has paused goes on here; what a person had paused stays so. A file
        that was cut off or changed is refused with `InvalidRequest`, and then nothing goes on.
        """
        actor = check_actor(by)
        await self.opened()
        return await Import(self.store, told or _say_nothing, by=actor).take(lines)


def _say_nothing(_what: str, _count: int) -> None:
    """What is told if nobody listens."""


def _version() -> str:
    """The version of holdfast, for people who look at a file."""
    from importlib.metadata import PackageNotFoundError, version  # here, as it is slow to load, and few programs export

    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "of a checkout"
