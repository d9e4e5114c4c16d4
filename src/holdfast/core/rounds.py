"""Rounds: the number of times that each step of a run was undone in this generation.

An undone step has no effect. Its next execution needs another idempotency key, because a provider would answer the old
key with the old effect. One entry counts the completed undos by location. Workflow code never sees it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.model import Entry, EntryKind, EntryState

ROUNDS_LOCATION = "~rounds"

_decode = msgspec.json.Decoder(dict[str, int]).decode


def rounds_in(entry: Entry | None) -> dict[str, int]:
    """Return the number of completed undos by location, from the entry `~rounds`."""
    return {} if entry is None or entry.result is None else _decode(entry.result)


def rounds_after(entry: Entry | None, undone: Iterable[str], now: Micros) -> Entry:
    """Return the entry `~rounds` after the undos of these locations were dropped from the history.

    It has no position: it is not a fact, and a replay never asks for it.
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
