"""Schema numbers: a store is used only by code that needs the number it has. There is no way from one to another."""

from __future__ import annotations

from holdfast.core.errors import SchemaOutOfDate
from holdfast.core.ports import SchemaStatus


def check(found: SchemaStatus, where: str) -> None:
    """Refuse a store that another version of holdfast made.

    Raises:
        SchemaOutOfDate: The store has another number. An empty store has none, and is not refused.

    """
    if _is_foreign(found):
        raise SchemaOutOfDate(f"{where} has {_refusal(found)}")


def trouble(found: SchemaStatus) -> str | None:
    """What is wrong with the schema of a store that is in use; None if it is the one that this code needs."""
    if found.current == 0:
        return "there is none; make it with `holdfast migrate`"
    return _refusal(found) if _is_foreign(found) else None


def _is_foreign(found: SchemaStatus) -> bool:
    return found.current not in (0, found.wanted)


def _refusal(found: SchemaStatus) -> str:
    """Which number the store has, which one this code needs, and how runs get from one to the other."""
    maker = "a newer" if found.current > found.wanted else "an older"
    return (
        f"schema number {found.current}, made by {maker} version of holdfast; this version needs number "
        f"{found.wanted}: export with the old version, import with the new one (`holdfast export > runs.jsonl` with "
        "the version that made the store, then `holdfast import runs.jsonl` with this one into an empty store)"
    )
