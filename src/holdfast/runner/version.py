"""A version: which of two ways the code of a run takes, where it was changed; and what kind an operation had."""

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
    """A version number. Awaiting it is allowed, not needed."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, int]:
        yield from ()
        return int(self)


def check_latest(name: str, latest: int) -> int:
    """Return `latest` if it can be a version, else say what is wrong with it."""
    if not is_count(latest):
        raise InvalidRequest(
            f"version {name!r}: latest is a whole number from 1 on, not {latest!r}; 1 is how the code was at first"
        )
    return latest


def check_removed(name: str, kind: object) -> EntryKind | None:
    """The kind of entry that an operation left which was removed, if any; refuses what no operation is or is called."""
    if name != TIMER_NAME:  # a timer of plain asyncio, which nobody named
        check_name(name, "name of what was removed")
    if not isinstance(kind, str) or kind not in _REMOVABLE:
        raise InvalidRequest(f"removed {name!r}: there is no kind {kind!r}; the kinds are {', '.join(_REMOVABLE)}")
    return _REMOVABLE[kind]


def version_in(entry: Entry) -> int:
    """The version that an entry records; 0 if it records none."""
    text = entry.result or ""
    return int(text) if entry.kind is EntryKind.VERSION and text.isdecimal() else 0
