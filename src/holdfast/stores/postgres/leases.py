"""Leases: the heartbeat renews them, and a worker can ask which it still holds."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from holdfast.core.checkpoint import Verdicts
from holdfast.core.clock import SECOND, Micros
from holdfast.core.model import Holding, WorkerRecord
from holdfast.stores.postgres import unreadable
from holdfast.stores.postgres.json_parts import members
from holdfast.stores.postgres.scripts import Connection
from holdfast.stores.postgres.sql import Calls, answer, qualified

PATIENCE = 8
"""A renewal retries locked runs for this fraction of a lease (1/8).

A transaction that locks a run for longer also keeps other workers from claiming it. For all other runs the next beat
comes in time.
"""

_LOOK = "select {schema}.look_v1(%s, %s)"

_FIRST_PAUSE_SECONDS = 0.01
_LAST_PAUSE_SECONDS = 0.5


class _Renewed(msgspec.Struct):
    told: Verdicts
    skipped: frozenset[str]


_decode_renewed = msgspec.json.Decoder(_Renewed).decode
_decode_skipped = msgspec.json.Decoder(frozenset[str]).decode
_decode_verdicts = msgspec.json.Decoder(Verdicts).decode


def renew(
    connection: Connection,
    calls: Calls,
    worker: WorkerRecord,
    holdings: Sequence[Holding],
    *,
    lease: Micros,
    at: Micros | None,
) -> Verdicts:
    """Record a worker's heartbeat, and renew the leases that it still holds."""

    def prolong(some: Sequence[Holding]) -> _Renewed:
        text = answer(connection, calls.renew, _json(worker), _json(some), lease, at)
        try:
            return _decode_renewed(text)
        except unreadable.FAILURES:
            parts = members(text)
            return _Renewed(unreadable.verdicts(parts["told"]), _decode_skipped(parts["skipped"]))

    renewed = prolong(holdings)
    told = renewed.told
    until = time.monotonic() + lease / SECOND / PATIENCE
    pause = _FIRST_PAUSE_SECONDS
    while (locked := _still_held(renewed)) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(_LAST_PAUSE_SECONDS, pause * 2)
        renewed = prolong([holding for holding in holdings if holding.run_id in locked])
    return told


def _still_held(renewed: _Renewed) -> frozenset[str]:
    """Return the runs that were skipped because they are locked. A run that does not exist is skipped, too."""
    if not renewed.skipped:
        return renewed.skipped
    return renewed.skipped - {verdict.run_id for verdict in renewed.told.verdicts if verdict.is_lost}


def look(connection: Connection, schema: str, holdings: Sequence[Holding], at: Micros | None) -> Verdicts:
    """Return the verdict on each lease, as a renewal would give it."""
    text = answer(connection, qualified(_LOOK, schema), _json(holdings), at)
    try:
        return _decode_verdicts(text)
    except unreadable.FAILURES:
        return unreadable.verdicts(text)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
