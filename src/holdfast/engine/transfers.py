"""Transfers: export runs of one store as lines of JSON, and import them into another."""

from __future__ import annotations

from holdfast.core.intent import check_actor, check_reason
from holdfast.core.package import installed_version
from holdfast.engine.export import Export, ProgressCallback
from holdfast.engine.importing import Import, ImportReport, Lines
from holdfast.engine.queries import Filter, checked_filter
from holdfast.engine.session import Session

TIMEOUT_SECONDS = 60.0


def new_export(
    session: Session,
    chosen: Filter,
    *,
    live: bool,
    timeout: float,
    reason: str,
    by: str,
    progress: ProgressCallback | None,
) -> Export:
    """Return an export of the runs that a filter chooses. Iterating over it starts it."""
    return Export(
        session,
        checked_filter(chosen),
        store_kind=type(session.store).__name__.removesuffix("Store").lower(),
        version=installed_version(),
        is_live=live,
        timeout_seconds=timeout,
        reason=check_reason(reason),
        by=check_actor(by),
        progress=progress or _say_nothing,
    )


async def import_lines(session: Session, lines: Lines, *, by: str, progress: ProgressCallback | None) -> ImportReport:
    """Import the lines of an export."""
    actor = check_actor(by)
    await session.open()
    return await Import(session.store, progress or _say_nothing, by=actor).take(lines)


def _say_nothing(_what: str, _count: int) -> None:
    """Ignore progress, if the caller passed no callback."""
