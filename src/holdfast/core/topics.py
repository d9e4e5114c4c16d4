"""Topics: the rules that apply to an event, and the runs that may get a queue event. Pure decisions for stores."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, get_args

from holdfast.core.clock import DAY, NEVER, Micros, micros
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import check_topic
from holdfast.core.model import Run, Topic, TopicMode
from holdfast.core.states import RunState

EventState = Literal["open", "pending", "handed", "taken"]
"""A fanout event is `open`. A queue event is `pending`, `handed` to one waiting run, or `taken` by it for good."""

TAKEN_RETENTION: Micros = DAY
REPLY_RETENTION: Micros = DAY
HANDED_EXPIRY: Micros = NEVER
"""Expiry of an event that is in the inbox of a run: never."""

FAMILY = "*"


def topic_of(name: str, known: Mapping[str, Topic]) -> Topic:
    """Return the rules for a topic: its own, those of the closest family that covers it, or the defaults."""
    if not known:
        return Topic(name=name)
    if (exact := known.get(name)) is not None:
        return exact
    families = (known.get(name[:length] + FAMILY) for length in range(len(name), -1, -1))
    return next((family for family in families if family is not None), Topic(name=name))


def covers(pattern: str, topic: str) -> bool:
    """True if a pattern covers a topic: exactly, or as a family such as `orders.*`."""
    return topic == pattern or (pattern.endswith(FAMILY) and topic.startswith(pattern[:-1]))


def may_be_handed(run: Run) -> bool:
    """True if a waiting run may get a queue event. A paused run would only keep it from others."""
    return not run.state.is_end and run.state is not RunState.PAUSED


def checked_topic(
    before: Topic, mode: TopicMode | None, retention: float | timedelta | None, max_pending: int | None
) -> Topic:
    """Return the changed rules of a topic, if they are valid. None leaves a setting as it is."""
    check_topic(before.name)
    mode = before.mode if mode is None else mode
    if mode not in get_args(TopicMode):
        raise InvalidRequest(f"mode={mode!r}: expected 'fanout' (for every waiting run) or 'queue' (for exactly one)")
    return Topic(
        name=before.name,
        mode=mode,
        retention=before.retention if retention is None else _checked_retention(retention),
        max_pending=before.max_pending if max_pending is None else _checked_max_pending(max_pending),
    )


def _checked_retention(retention: float | timedelta) -> Micros:
    length = micros(retention, "retention")
    if length <= 0:
        raise InvalidRequest(f"retention={retention!r}: expected more than 0 seconds")
    return length


def _checked_max_pending(max_pending: int) -> int:
    if type(max_pending) is not int or not 1 <= max_pending < 2**62:
        raise InvalidRequest(f"max_pending={max_pending!r}: expected a whole number of events, at least 1")
    return max_pending
