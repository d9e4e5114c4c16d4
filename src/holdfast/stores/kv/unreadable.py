"""Runs that cannot be decoded: a claim blocks them, and the worker gets the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import msgspec

from holdfast.core.errors import ErrorRecord, Unreadable
from holdfast.core.model import AuditFact
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


def leased_runs(found: Sequence[ClaimedRun]) -> tuple[list[LeasedRun], list[OddRun]]:
    """Decode the runs that an engine has leased. Return those that can be read, and the others."""
    read: list[LeasedRun] = []
    odd: list[OddRun] = []
    for run in found:
        try:
            read.append(leased(run))
        except FAILURES as error:
            odd.append(OddRun(run.id, "run", reason_of(error)))
    return read, odd


async def block(driver: Driver, odd: OddRun) -> None:
    """Block a run that no worker can read. Its unreadable fields stay as they are, except its state."""
    key = names.head(odd.run_id)
    loaded = await driver.load([AllFields(key)])
    (head,) = cast("list[Partition]", loaded.answers)
    if not head.fields:
        return
    run, why = salvage(odd.run_id, head.fields)
    error = ErrorRecord(type=Unreadable.__name__, message=why or str(odd))
    _log.warning("run %s cannot be read and is blocked: %s", run.id, error.message)
    blocked = msgspec.structs.replace(
        run,
        state=RunState.BLOCKED,
        token=run.token + 1,
        worker=None,
        claim_id=None,
        ready_at=None,
        error=error,
        updated_at=loaded.now,
    )
    fields = fields_of(blocked)
    fields.pop(names.PAYLOAD)
    adds: dict[str, dict[str, int]] = {}
    for index, member, score in entries_of(blocked):
        adds.setdefault(index, {})[member] = score
    fact = AuditFact(run_id=run.id, event="blocked", at=loaded.now, data={"error": str(error)[:500]})
    part = Part(
        checks={key: head.version},
        puts={key: fields},
        drops={key: [names.READY]},
        removes={index: [member] for index, member, _ in entries_of(run) if not is_catalogue(index)},
        adds=adds,
        appends={names.audit(run.id): [fact_line(fact)]},
    )
    await driver.commit([part])
