"""Starts: create runs from intents, all of one call or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Created, CreatedRun, LeaseRequest
from holdfast.core.clock import Micros
from holdfast.core.model import AuditFact, Intent, Lease, Run
from holdfast.stores.operations.unit_of_work import UnitOfWork


def create(unit: UnitOfWork, intents: Sequence[Intent], lease: LeaseRequest | None, now: Micros) -> Created:
    """Create runs. With `lease`, the runs that are ready now are leased at once. Raises before it writes."""
    holders = _key_holders(unit, intents)
    existing = _existing(unit, intents, holders)
    fresh = [intent for intent, known in zip(intents, existing, strict=True) if known is None]
    leases = _add(unit, fresh, holders, lease, now)
    return Created(
        runs=tuple(
            CreatedRun(run_id=known, created=False)
            if known is not None
            else CreatedRun(run_id=intent.id, created=True, lease=leases.get(intent.id))
            for intent, known in zip(intents, existing, strict=True)
        ),
        now=now,
    )


def create_children(unit: UnitOfWork, intents: Sequence[Intent], now: Micros) -> None:
    """Create children, or runs of schedules, unless they exist."""
    known = unit.runs.existing([intent.id for intent in intents])
    fresh = {intent.id: intent for intent in intents if intent.id not in known}
    seated = rules.seated(fresh.values(), lambda intent: unit.families.seated(intent.parent_id, intent.group))
    children = list(seated)
    _add(unit, children, _key_holders(unit, children), None, now)


def _key_holders(unit: UnitOfWork, intents: Sequence[Intent]) -> dict[str, Run]:
    """Return the runs that have the keys of intents, by key."""
    keys = [intent.key for intent in intents if intent.key is not None]
    return unit.runs.holding(keys) if keys else {}


def _add(
    unit: UnitOfWork, intents: Sequence[Intent], holders: dict[str, Run], lease: LeaseRequest | None, now: Micros
) -> dict[str, Lease]:
    """Write new runs. Return the leases of the runs that were leased at once, by run id."""
    runs: dict[str, Run] = {}
    keyed: dict[str, str] = {}
    leases: dict[str, Lease] = {}
    facts: list[AuditFact] = []
    for intent in intents:
        run = rules.new_run(intent, now)
        if run.key is not None:
            if (twin := keyed.get(run.key)) is not None:
                runs[twin] = replace(runs[twin], key=None)
            elif (holder := holders.get(run.key)) is not None:
                unit.runs.set_key(holder, None)
                unit.audit.note(audit.of_key_reuse(holder.id, run.key, run.id, now))
            keyed[run.key] = run.id
        if lease is None or run.ready_at is None or run.ready_at > now or unit.types.is_ruled(run.type):
            unit.news.ready.add(run.type)
        else:
            before, run = run, rules.claimed(run, lease, now)
            facts.append(audit.of_claim(before, run, now))
            leases[run.id] = Lease(run=run)
        runs[run.id] = run
    if runs:
        unit.runs.add(list(runs.values()))
    for intent in intents:
        if intent.is_parked:
            unit.waits.put(intent.id, (rules.parking(runs[intent.id]),))
    for fact in facts:
        unit.audit.note(fact)
    return leases


def _existing(unit: UnitOfWork, intents: Sequence[Intent], holders: dict[str, Run]) -> list[str | None]:
    """Return for each intent the id of the run that already exists for it, or None. Raises before any write."""
    known = unit.runs.existing([intent.id for intent in intents])
    first: dict[str, Intent] = {}
    found: list[str | None] = []
    for index, intent in enumerate(intents):
        if intent.id in known:
            found.append(intent.id)
            continue
        if intent.key is None:
            known.add(intent.id)  # the same id twice in one call makes one run
            found.append(None)
            continue
        stands, verdict = _key_verdict(intent, first.get(intent.key), holders.get(intent.key))
        if verdict == "conflict":
            raise rules.key_conflict(intent.key, stands, index)
        if verdict == "free":
            first[intent.key] = intent
            known.add(intent.id)
        found.append(stands if verdict == "same" else None)
    return found


def _key_verdict(
    intent: Intent, twin: Intent | None, holder: Run | None
) -> tuple[str, Literal["free", "same", "conflict"]]:
    """Return the id of the run that has the intent's key, perhaps one of the same call, and the verdict."""
    if twin is not None:
        return twin.id, rules.key_verdict(rules.new_run(twin, 0), replace(intent, reuse="never"))
    if holder is not None:
        return holder.id, rules.key_verdict(holder, intent)
    return "", "free"
