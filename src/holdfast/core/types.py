"""Types: checks of the settings of a type, so that every mistake is found before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from msgspec import UNSET, UnsetType

from holdfast.core.clock import Micros, micros
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import check_length, check_text, check_type, is_count
from holdfast.core.model import Rate, TypeChange

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
