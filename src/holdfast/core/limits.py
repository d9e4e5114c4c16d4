"""Limits: how many runs of a type may execute at once (concurrency), and how many may begin per period (rate).

A run needs a *slot* of each limit that applies to it before it is claimed. Without one it is parked, with a wait of
kind `slot`. A run owns its slots and hands them on when it gives them back. A slot of a rate limit is used up when the
run begins, and new ones become free over time. Pure decisions: stores keep slots, windows and waits, and
`holdfast.stores.operations.limits` decides which run gets a slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from holdfast.core.claim_order import RANKS, Shares, rank_of
from holdfast.core.clock import Micros, micros
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import check_length, check_text, check_type, is_count
from holdfast.core.model import Rate, Run, TypeChange, TypeRule, Value, Wait, WaitKind
from holdfast.core.rules import LIMIT_LOCATION

PARKED_AT_ONCE = 500
"""Maximum number of runs that one claim parks. It then ends with `has_more`, so that other transactions can run."""

WINDOW_BLOCKS = 64
"""Number of blocks of time in a window. All runs of a block count as if they began with the last one."""


class Window(Value, frozen=True, kw_only=True):
    """The state that the limits of a type keep.

    `blocks` are instants and numbers of runs that began, in order, as far back as the rate needs. `shares` counts the
    runs that got a slot while runs of several ranks waited for one, so that no rank starves.
    """

    blocks: tuple[tuple[Micros, int], ...] = ()
    shares: Shares = Shares()


def slots_of(rule: TypeRule, run: Run) -> dict[str, int]:
    """Return the slots that a run needs to execute, with the number of each: per key, of the type, and of the rate."""
    name = type_slot(rule.name)
    slots = {f"{name} {tag}={run.tags[tag]}": count for tag, count in sorted(rule.per_key.items()) if tag in run.tags}
    if rule.concurrency is not None:
        slots[name] = rule.concurrency
    if rule.rate is not None and is_new(run):
        slots[rate_slot(rule.name)] = rule.rate.count
    return slots


def type_slot(type: str) -> str:
    """Return the name of the slots that all runs of a type share. Names of per-key slots begin with it and a space."""
    return f"type:{type}"


def rate_slot(type: str) -> str:
    """Return the name of the slots that runs of a type use up when they begin."""
    return f"rate:{type}"


def type_of(slot: str) -> str:
    """Return the type that a slot belongs to. Type names have no spaces."""
    return slot.partition(":")[2].partition(" ")[0]


def is_of(slot: str, type: str) -> bool:
    """True if a slot belongs to a limit of a type."""
    name = type_slot(type)
    return slot in (name, rate_slot(type)) or slot.startswith(f"{name} ")


def is_new(run: Run) -> bool:
    """True if no worker has ever claimed a run. A retried, reopened or continued run has begun before."""
    return run.token == 0


def queue_for(rule: TypeRule, run: Run, slot: str) -> str:
    """Return the queue in which a run waits for a slot: normally the slot's own queue.

    A run that needs a slot of the type and one of the rate waits for both in the queue of the rate. Otherwise the
    waiting runs would move from one queue to the other and back.
    """
    is_both = slot == type_slot(rule.name) and rule.rate is not None and is_new(run)
    return rate_slot(rule.name) if is_both else slot


def parking(run: Run, queue: str, since: Micros) -> Wait:
    """Return the wait of a run that lacks a slot. `since`, when it could first have begun, decides its place."""
    return Wait(location=LIMIT_LOCATION, kind=WaitKind.SLOT, since=since, names=(queue,), after=level_of(run))


def level_of(run: Run) -> int:
    """Return priority and rank of a run as one number, which orders the runs that wait for a slot."""
    return run.priority * RANKS + rank_of(run)


def levels_beside(level: int) -> range:
    """Return the later levels of the same priority: those of the ranks after this one."""
    return range(level + 1, level - level % RANKS + RANKS)


def parked_at(waits: Iterable[Wait]) -> Wait | None:
    """Return the wait that a limit of its type gave a run, if any."""
    return next((wait for wait in waits if wait.location == LIMIT_LOCATION), None)


def without(waits: Iterable[Wait]) -> tuple[Wait, ...]:
    """Return the waits without the one that a limit added."""
    return tuple(wait for wait in waits if wait.location != LIMIT_LOCATION)


def release(run: Run, since: Micros, now: Micros) -> Run:
    """Return a parked run made ready, in the place that it had."""
    return replace(run, ready_at=min(since, now), updated_at=now)


# Rates


def begun(window: Window, rate: Rate, now: Micros) -> int:
    """Return the number of runs that began less than a period ago."""
    return sum(count for at, count in window.blocks if at > now - rate.period)


def with_one_more(window: Window, rate: Rate, now: Micros) -> Window:
    """Return the window after one more run has begun."""
    blocks = [block for block in window.blocks if block[0] > now - rate.period]
    at = max(now, blocks[-1][0]) if blocks else now  # the store's clock may have been set back
    length = max(1, rate.period // WINDOW_BLOCKS)
    if blocks and at // length == blocks[-1][0] // length:
        # Counts the whole block as begun now: slightly stricter than the rate, never more lenient.
        blocks[-1] = at, blocks[-1][1] + 1
    else:
        blocks.append((at, 1))
    return replace(window, blocks=tuple(blocks))


def next_at(window: Window, rate: Rate, promised: int, now: Micros) -> Micros | None:
    """Return when the next run may begin; `promised` runs have a slot and have not begun.

    None: not before one of those begins.
    """
    free = rate.count - promised - begun(window, rate, now)
    if free > 0:
        return now
    for at, count in window.blocks:
        if at > now - rate.period:
            free += count
            if free > 0:
                return at + rate.period
    return None


RUNTIME_LIMIT = 50
DESCRIPTION_LIMIT = 500
COUNT_LIMIT = 2**31
PER_KEY_LIMIT = 10
"""Maximum number of tags with limits. A run needs a slot of each one that it has."""


def checked_change(
    name: str,
    *,
    enabled: bool | UnsetType = UNSET,
    concurrency: int | UnsetType | None = UNSET,
    per_key: Mapping[str, int] | UnsetType | None = UNSET,
    rate: tuple[int, float | timedelta] | UnsetType | None = UNSET,
    retention: float | timedelta | UnsetType | None = UNSET,
    description: str | UnsetType = UNSET,
    runtime: str | UnsetType = UNSET,
) -> TypeChange:
    """Return a change to the settings of a type. Raises `InvalidRequest` for an invalid value."""
    said: dict[str, Any] = {
        "is_enabled": enabled if enabled is UNSET else _switch(enabled),
        "concurrency": concurrency if concurrency in (UNSET, None) else _count(concurrency, "concurrency"),
        "per_key": per_key if per_key is UNSET else _per_key(per_key),
        "rate": rate if rate in (UNSET, None) else _rate(rate),
        "retention": retention if isinstance(retention, UnsetType) else check_length(retention, "retention"),
        "description": description if description is UNSET else _text(description, "description", DESCRIPTION_LIMIT),
        "runtime": runtime if runtime is UNSET else _text(runtime, "runtime", RUNTIME_LIMIT),
    }
    return TypeChange(name=check_type(name), **said)


def first_line(text: str | None) -> str:
    """Return the first line of a docstring, for the description of a type."""
    line = (text or "").strip().partition("\n")[0].strip()
    return "".join(character for character in line if character.isprintable())[:DESCRIPTION_LIMIT]


def _switch(enabled: object) -> bool:
    if not isinstance(enabled, bool):
        raise InvalidRequest(f"enabled={enabled!r}: expected True or False")
    return enabled


def _count(count: object, what: str) -> int:
    if not is_count(count) or count >= COUNT_LIMIT:
        raise InvalidRequest(
            f"{what}={count!r}: expected a whole number of runs, at least 1, or None for no limit; "
            "use enabled=False to keep all its runs from being claimed"
        )
    return count


def _per_key(per_key: object) -> dict[str, int]:
    if per_key is None:
        return {}
    if not isinstance(per_key, Mapping):
        raise InvalidRequest(f"per_key={per_key!r}: expected numbers of runs by tag name, such as {{'tenant': 2}}")
    if len(per_key) > PER_KEY_LIMIT:
        raise InvalidRequest(f"per_key has {len(per_key)} tags; at most {PER_KEY_LIMIT} may have limits")
    return {check_text(tag, "tag's name"): _count(count, f"per_key[{tag!r}]") for tag, count in per_key.items()}


def _rate(rate: object) -> Rate:
    if not isinstance(rate, tuple) or len(rate) != 2:
        raise InvalidRequest(f"rate={rate!r}: expected (count, seconds), such as (100, 60), or None")
    count, period = rate
    length: Micros = micros(period, "rate: the period")
    if length <= 0:
        raise InvalidRequest(f"rate={rate!r}: the period must be longer than 0 seconds")
    return Rate(count=_count(count, "rate: the count"), period=length)


def _text(text: object, what: str, limit: int) -> str:
    return "" if text == "" else check_text(text, what, limit)
