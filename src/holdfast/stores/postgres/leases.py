"""Leases: prolonged by the heartbeat, looked at by whoever wants to know whether he still holds them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from holdfast.core.checkpoint import Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Holding, WorkerInfo
from holdfast.stores.postgres.calls import Calls, answer
from holdfast.stores.postgres.talks import Connection

PAUSES_SECONDS = (0.01, 0.03, 0.1, 0.3)
"""How long to wait each time for those who write a run just now. Who takes longer keeps everybody else off, too."""


class _Renewed(msgspec.Struct):
    told: Verdicts
    skipped: frozenset[str]


_decode_renewed = msgspec.json.Decoder(_Renewed).decode
_decode_verdicts = msgspec.json.Decoder(Verdicts).decode


def renew(
    connection: Connection,
    calls: Calls,
    worker: WorkerInfo,
    holdings: Sequence[Holding],
    *,
    lease: Micros,
    at: Micros | None,
) -> Verdicts:
    """Tell that a worker lives, and prolong the leases that are still its own."""

    def prolong(some: Sequence[Holding]) -> _Renewed:
        return _decode_renewed(answer(connection, calls.renew, _json(worker), _json(some), lease, at))

    renewed = prolong(holdings)
    told = renewed.told
    for pause in PAUSES_SECONDS:
        if not renewed.skipped:
            break
        time.sleep(pause)
        renewed = prolong([holding for holding in holdings if holding.run_id in renewed.skipped])
    return told


def look(connection: Connection, calls: Calls, holdings: Sequence[Holding], at: Micros | None) -> Verdicts:
    """What a holder would be told of each of its runs."""
    return _decode_verdicts(answer(connection, calls.look, _json(holdings), at))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
