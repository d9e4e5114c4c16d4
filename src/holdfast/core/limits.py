"""Limits: how many runs of a type may be worked on at once, and how many may begin in a stretch of time.

A run needs a *slot* of each limit that counts it before it is claimed; without one it is parked, with a wait of kind
`slot`. Slots are things that are had, not numbers that are counted: whoever has one hands it on. Those of a rate are
used up when the run begins, and there are new ones as time goes by. Pure decisions: stores keep slots, windows and
waits, and `holdfast.stores.limits` says who gets them.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.claim_order import RANKS, Shares, rank_of
from holdfast.core.clock import Micros
from holdfast.core.model import Rate, Run, TypeRule, Value, Wait, WaitKind
from holdfast.core.rules import LIMIT_LOCATION

PARKED_AT_ONCE = 500
"""A claim that has parked so many gives others a turn, and says that there is more."""

WINDOW_BLOCKS = 64
"""A window remembers what began in so many blocks of time; within one, all count as the last of it."""


class Window(Value, frozen=True, kw_only=True):
    """What the limits of a type have to remember.

    `blocks` tells how many runs have begun when, as far as that limits those to come: instants and counts, in order.
    `shares` counts those who got a slot while runs of several ranks waited for one, so that no rank starves.
    """

    blocks: tuple[tuple[Micros, int], ...] = ()
    shares: Shares = Shares()


def slots_of(rule: TypeRule, run: Run) -> dict[str, int]:
    """The slots a run needs to be worked on, and how many there are of each: of its keys, its type, and the rate."""
    name = type_slot(rule.name)
    slots = {f"{name} {tag}={run.tags[tag]}": count for tag, count in sorted(rule.per_key.items()) if tag in run.tags}
    if rule.concurrency is not None:
        slots[name] = rule.concurrency
    if rule.rate is not None and is_new(run):
        slots[rate_slot(rule.name)] = rule.rate.count
    return slots


def type_slot(type: str) -> str:
    """The name of the slots that all runs of a type share. Those of its keys begin with it, and a blank."""
    return f"type:{type}"


def rate_slot(type: str) -> str:
    """The name of the slots that runs of a type use up when they begin."""
    return f"rate:{type}"


def type_of(slot: str) -> str:
    """The type whose limit a slot is of. Names that users may give to types have no blanks."""
    return slot.partition(":")[2].partition(" ")[0]


def is_of(slot: str, type: str) -> bool:
    """Whether a slot is one of a limit of a type."""
    name = type_slot(type)
    return slot in (name, rate_slot(type)) or slot.startswith(f"{name} ")


def is_new(run: Run) -> bool:
    """Whether nobody has ever had a run. One that is retried, reopened or continued as new has begun before."""
    return run.token == 0


def queue_for(rule: TypeRule, run: Run, slot: str) -> str:
    """Where a run waits that lacks a slot, which is the slot's own queue.

    But for what has to have both a slot of the type and one of the rate: it waits for them together, or else all that
    waits would go from the one queue to the other and back.
    """
    is_both = slot == type_slot(rule.name) and rule.rate is not None and is_new(run)
    return rate_slot(rule.name) if is_both else slot


def parking(run: Run, queue: str, since: Micros) -> Wait:
    """What a run waits for that lacks a slot. It has its place in the order from when it could first have begun."""
    return Wait(location=LIMIT_LOCATION, kind=WaitKind.SLOT, since=since, names=(queue,), after=level_of(run))


def level_of(run: Run) -> int:
    """Priority and rank of a run as one number, by which those who wait for a slot are sorted."""
    return run.priority * RANKS + rank_of(run)


def levels_beside(level: int) -> range:
    """The levels of the same priority that come after this one: of the ranks behind its own."""
    return range(level + 1, level - level % RANKS + RANKS)


def parked_at(waits: Iterable[Wait]) -> Wait | None:
    """What a run waits for because of the limits of its type, if it does."""
    return next((wait for wait in waits if wait.location == LIMIT_LOCATION), None)


def without(waits: Iterable[Wait]) -> tuple[Wait, ...]:
    """The waits but for the one that a limit has added."""
    return tuple(wait for wait in waits if wait.location != LIMIT_LOCATION)


def let_go(run: Run, since: Micros, now: Micros) -> Run:
    """A run that waits no more, ready in the place it had."""
    return replace(run, ready_at=min(since, now), updated_at=now)


# Rates


def begun(window: Window, rate: Rate, now: Micros) -> int:
    """How many count that began less than a period ago."""
    return sum(count for at, count in window.blocks if at > now - rate.period)


def with_one_more(window: Window, rate: Rate, now: Micros) -> Window:
    """The window after one more has begun."""
    blocks = [block for block in window.blocks if block[0] > now - rate.period]
    at = max(now, blocks[-1][0]) if blocks else now  # a clock may have been set back
    length = max(1, rate.period // WINDOW_BLOCKS)
    if blocks and at // length == blocks[-1][0] // length:
        # As if all of its block began now: a little stricter than need be, never less so.
        blocks[-1] = at, blocks[-1][1] + 1
    else:
        blocks.append((at, 1))
    return replace(window, blocks=tuple(blocks))


def next_at(window: Window, rate: Rate, promised: int, now: Micros) -> Micros | None:
    """When the next may begin, while so many others may who have not yet. None: not before one of them does."""
    free = rate.count - promised - begun(window, rate, now)
    if free > 0:
        return now
    for at, count in window.blocks:
        if at > now - rate.period:
            free += count
            if free > 0:
                return at + rate.period
    return None
