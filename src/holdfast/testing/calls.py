"""A call of a store, with the name that faults, plans and journals use for it."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from holdfast.core.commands import (
    Control,
    EmitEvents,
    FireSchedules,
    RetireWorker,
    SendMessages,
)
from holdfast.core.questions import EndsOf, ListDueSchedules, RepliesTo, VerdictsOn

_NAMES: dict[type[Any], str] = {
    SendMessages: "send",
    EmitEvents: "emit",
    FireSchedules: "fire",
    RetireWorker: "retire",
    EndsOf: "ends",
    RepliesTo: "replies",
    VerdictsOn: "look",
    ListDueSchedules: "due_schedules",
}


class StoreCall(NamedTuple):
    """A call of a member of the store port. `name` is the member, or a shorter name for some commands and questions."""

    member: str
    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]

    @classmethod
    def of(cls, member: str, *args: Any, **options: Any) -> Self:
        return cls(member, _name_of(member, args), args, options)


def _name_of(member: str, args: tuple[Any, ...]) -> str:
    if member not in ("apply", "stats", "catalog", "changes"):
        return member
    return "control" if isinstance(args[0], Control) else _NAMES.get(type(args[0]), member)
