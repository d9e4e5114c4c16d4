"""Claims: how a request becomes arguments of `claim.lua`, and how its answer is read."""

from __future__ import annotations

from typing import Any

from holdfast.core.checkpoint import ClaimRequest
from holdfast.stores.kv.driver import ClaimAnswer, ClaimedRun
from holdfast.stores.redis.loads import partition_of
from holdfast.stores.redis.scripts import Argument


def claim_arguments(request: ClaimRequest) -> list[Argument]:
    """Return the arguments of a claim: `claim.lua` describes their order."""
    return [
        request.id,
        request.worker,
        request.limit,
        request.lease,
        request.python,
        int(request.may_suspect),
        int(request.is_repeat),
        request.shares.since_new,
        request.shares.since_child,
        *dict.fromkeys(request.types),
    ]


def found_of(reply: list[Any]) -> tuple[ClaimAnswer, int]:
    """Read the answer to a claim. The second value is the version that was written, or 0."""
    now, version, next_ready_at, limited, runs, odd = reply
    found = ClaimAnswer(
        now=now,
        runs=[_claimed_run(*run) for run in runs],
        next_ready_at=next_ready_at,
        limited=tuple(type.decode() for type in limited),
        odd=tuple(run_id.decode() for run_id in odd),
    )
    return found, version


def _claimed_run(run_id: bytes, head: list[bytes], history: list[bytes], inbox: list[bytes]) -> ClaimedRun:
    return ClaimedRun(run_id.decode(), partition_of(head), partition_of(history), partition_of(inbox).fields)
