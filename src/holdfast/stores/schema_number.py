"""Schema numbers: code uses a store only if the store has the schema number that the code needs.

There is no migration from one number to another. Runs move by export and import.
"""

from __future__ import annotations

from holdfast.core.errors import SchemaOutOfDate
from holdfast.core.ports import SchemaStatus


def check(found: SchemaStatus, where: str) -> None:
    """Refuse a store that another version of holdfast made.

    Raises:
        SchemaOutOfDate: The store has another schema number. An empty store has no number and is accepted.

    """
    if _is_foreign(found):
        raise SchemaOutOfDate(f"{where} has {_refusal(found)}")


def trouble(found: SchemaStatus) -> str | None:
    """Return the problem with the schema of a store in use, or None if this code can use it."""
    if found.current == 0:
        return "the store has no schema; create it with `holdfast migrate`"
    return _refusal(found) if _is_foreign(found) else None


def _is_foreign(found: SchemaStatus) -> bool:
    return found.current not in (0, found.wanted)


def _refusal(found: SchemaStatus) -> str:
    """Return both schema numbers, and how to move runs to a store that this code can use."""
    maker = "a newer" if found.current > found.wanted else "an older"
    return (
        f"schema number {found.current}, made by {maker} version of holdfast; this version needs number "
        f"{found.wanted}: export with the old version, import with the new one (`holdfast export > runs.jsonl` with "
        "the version that made the store, then `holdfast import runs.jsonl` with this one into an empty store)"
    )
