"""Rounds: how often each step of a run was undone in this generation.

A step that was undone has no effect any more. Its next execution needs another idempotency key: a provider would answer
the old key with the old effect. One entry counts the completed undos by location. Code never meets it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.model import Entry, EntryKind, EntryState

ROUNDS_LOCATION = "~rounds"

_decode = msgspec.json.Decoder(dict[str, int]).decode


def rounds_in(entry: Entry | None) -> dict[str, int]:
    """The completed undos by the location of the step, as the entry `~rounds` counts them."""
    return {} if entry is None or entry.result is None else _decode(entry.result)


def rounds_after(entry: Entry | None, undone: Iterable[str], now: Micros) -> Entry:
    """The entry `~rounds` after the undos of these locations were dropped from the history.

    It has no position: it is no fact that code is told, and a replay never asks for it.
    """
    rounds = rounds_in(entry)
    for location in undone:
        rounds[location] = rounds.get(location, 0) + 1
    return Entry(
        location=ROUNDS_LOCATION,
        kind=EntryKind.ROUNDS,
        state=EntryState.DONE,
        result=msgspec.json.encode(rounds, order="sorted").decode(),
        started_at=now,
        finished_at=now,
    )
