"""Runs that cannot be decoded: a claim blocks them, and the worker gets the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import msgspec

from holdfast.core.clock import Micros
from holdfast.core.errors import ErrorRecord, Unreadable
from holdfast.core.model import AuditFact, Run
from holdfast.core.states import RunState
from holdfast.core.unreadable import reason_of
from holdfast.stores.kv import names
from holdfast.stores.kv.audits import fact_line
from holdfast.stores.kv.claims import LeasedRun, leased
from holdfast.stores.kv.driver import AllFields, ClaimedRun, Driver, Part, Partition
from holdfast.stores.kv.reads import salvage
from holdfast.stores.kv.run_fields import entries_of, fields_of, is_catalogue
from holdfast.stores.kv.runs import FAILURES, OddRun

_log = logging.getLogger("holdfast.store")

UnreadRun = tuple[ClaimedRun, str]
"""A run that cannot be decoded, and the reason."""


def leased_runs(found: Sequence[ClaimedRun]) -> tuple[list[LeasedRun], list[UnreadRun]]:
    """Decode the runs that an engine has leased. Return those that can be read, and the others."""
    read: list[LeasedRun] = []
    unread: list[UnreadRun] = []
    for run in found:
        try:
            read.append(leased(run))
        except FAILURES as error:
            unread.append((run, reason_of(error)))
    return read, unread


async def block_odd(driver: Driver, odd: OddRun) -> None:
    """Block a run that the shared operations could not read."""
    makers = (names.head, names.history, names.inbox)
    loaded = await driver.load([AllFields(name(odd.run_id)) for name in makers])
    head, history, inbox = cast("list[Partition]", loaded.answers)
    if head.fields:
        found = ClaimedRun(odd.run_id, head, history, inbox.fields)
        await block(driver, (found, str(odd)), loaded.now)


async def block(driver: Driver, unread: UnreadRun, now: Micros) -> None:
    """Block a run that no worker can read. Its unreadable fields stay as they are, except its state."""
    found, why = unread
    run, flaws = salvage(found.id, found.head.fields)
    error = ErrorRecord(type=Unreadable.__name__, message=flaws or why)
    _log.warning("run %s cannot be read and is blocked: %s", found.id, error.message)
    blocked = _blocked(run, error, now)
    head = names.head(found.id)
    fields = fields_of(blocked)
    fields.pop(names.PAYLOAD)
    adds: dict[str, dict[str, int]] = {}
    for index, member, score in entries_of(blocked):
        adds.setdefault(index, {})[member] = score
    fact = AuditFact(run_id=found.id, event="blocked", at=now, data={"error": str(error)[:500]})
    part = Part(
        checks={head: found.head.version},
        puts={head: fields},
        drops={head: [names.READY]},
        removes={index: [member] for index, member, _ in entries_of(run) if not is_catalogue(index)},
        adds=adds,
        appends={names.audit(found.id): [fact_line(fact)]},
    )
    await driver.commit([part])


def _blocked(run: Run, error: ErrorRecord, now: Micros) -> Run:
    return msgspec.structs.replace(
        run,
        state=RunState.BLOCKED,
        token=run.token + 1,
        worker=None,
        claim_id=None,
        ready_at=None,
        error=error,
        updated_at=now,
    )
