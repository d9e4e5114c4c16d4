"""`ctx.version` and `ctx.removed`: checks of their arguments, and the type of a version number."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import is_count
from holdfast.core.location import TIMER_NAME, check_name
from holdfast.core.model import Entry, EntryKind

_REMOVABLE: dict[str, EntryKind | None] = {
    **{kind.value: kind for kind in EntryKind if kind not in (EntryKind.REMOVED, EntryKind.ROLLBACK, EntryKind.UNDO)},
    "sleep": EntryKind.TIMER,
    # These have no entry of their own, only those of their branches or children.
    "join": None,
    "race": None,
    "first_settled": None,
    "map": None,
}


class Version(int):
    """A version number. Code may await it, but need not."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, int]:
        yield from ()
        return int(self)


def check_latest(name: str, latest: int) -> int:
    """Return `latest` if it is a valid version."""
    if not is_count(latest):
        raise InvalidRequest(
            f"version {name!r}: latest must be a whole number of at least 1, not {latest!r}; 1 is the original code"
        )
    return latest


def check_removed(name: str, kind: object) -> EntryKind | None:
    """Return the kind of entry of a removed operation, or None if it has no entry. Refuses an unknown kind or name."""
    if name != TIMER_NAME:  # the location of a timer of plain asyncio, which has no name
        check_name(name, "name of what was removed")
    if not isinstance(kind, str) or kind not in _REMOVABLE:
        raise InvalidRequest(f"removed {name!r}: unknown kind {kind!r}; the kinds are {', '.join(_REMOVABLE)}")
    return _REMOVABLE[kind]


def version_in(entry: Entry) -> int:
    """Return the version that an entry records, or 0 if it records none."""
    text = entry.result or ""
    return int(text) if entry.kind is EntryKind.VERSION and text.isdecimal() else 0
