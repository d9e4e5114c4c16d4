"""Limits: how many runs of a type may be worked on at once, and how many may begin in a stretch of time.

A run needs a *slot* of each limit that counts it before it is claimed; without one it is parked, with a wait of kind
`slot`. Slots are things that are had, not numbers that are counted: whoever has one hands it on. A rate gives each run
an instant before which it does not begin. Pure decisions: stores keep slots, windows and waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.clock import Micros
from holdfast.core.model import Rate, Run, TypeRule, Value, Wait, WaitKind
from holdfast.core.rules import LIMIT_LOCATION, RATE_LOCATION

PARKED_AT_ONCE = 500
"""A claim that has parked so many gives others a turn, and says that there is more."""

WINDOW_BLOCKS = 64
"""A window remembers what began in so many blocks of time; within one, all count as the last of it."""

LOCATIONS = frozenset({LIMIT_LOCATION, RATE_LOCATION})


class Window(Value, frozen=True, kw_only=True):
    """How many runs of a type begin when, as far as that limits those to come: instants and counts, in order."""

    blocks: tuple[tuple[Micros, int], ...] = ()


def slots_of(rule: TypeRule, run: Run) -> dict[str, int]:
    """The slots a run needs to be worked on, and how many there are of each. Those of a key come before the type's."""
    name = type_slot(rule.name)
    slots = {f"{name} {tag}={run.tags[tag]}": count for tag, count in sorted(rule.per_key.items()) if tag in run.tags}
    if rule.concurrency is not None:
        slots[name] = rule.concurrency
    return slots


def type_slot(type: str) -> str:
    """The name of the slots that all runs of a type share. Those of its keys begin with it, and a blank."""
    return f"type:{type}"


def rate_name(type: str) -> str:
    """What a run waits for that may not begin yet."""
    return f"rate:{type}"


def parking(run: Run, slot: str, since: Micros) -> Wait:
    """What a run waits for that lacks a slot. It has its place in the order from when it could first have begun."""
    return Wait(location=LIMIT_LOCATION, kind=WaitKind.SLOT, since=since, names=(slot,), after=run.priority)


def holding_back(run: Run, due: Micros, now: Micros) -> Wait:
    """What a run waits for that may not begin before an instant, which is its own from now on."""
    since = now if run.ready_at is None else min(now, run.ready_at)
    return Wait(
        location=RATE_LOCATION,
        kind=WaitKind.SLOT,
        since=since,
        names=(rate_name(run.type),),
        deadline=due,
        after=run.priority,
    )


def without(waits: Iterable[Wait]) -> tuple[Wait, ...]:
    """The waits but for those that a limit has added."""
    return tuple(wait for wait in waits if wait.location not in LOCATIONS)


def wait_at(waits: Iterable[Wait], location: str) -> Wait | None:
    """The wait at one of the locations of limits, if there is one."""
    return next((wait for wait in waits if wait.location == location), None)


def reserve(window: Window, rate: Rate, now: Micros) -> tuple[Micros, Window]:
    """When the next run may begin, and the window with it in. So no stretch of a period ever sees more than allowed.

    Instants only grow, so all that counts is what begins less than a period before the last.
    """
    blocks = list(window.blocks)
    due = max(now, blocks[-1][0]) if blocks else now
    blocks = [block for block in blocks if block[0] > due - rate.period]
    while sum(count for _, count in blocks) >= rate.count:
        due = blocks.pop(0)[0] + rate.period
        blocks = [block for block in blocks if block[0] > due - rate.period]
    block = max(1, rate.period // WINDOW_BLOCKS)
    if blocks and due // block == blocks[-1][0] // block:
        # As if all of its block began now: a little stricter than need be, never less so.
        blocks[-1] = due, blocks[-1][1] + 1
    else:
        blocks.append((due, 1))
    return due, Window(blocks=tuple(blocks))
