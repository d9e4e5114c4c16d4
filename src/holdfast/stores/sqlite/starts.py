"""Starts: intents become runs, all of one call or none of them."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Created, CreatedRun, LeaseRequest
from holdfast.core.clock import Micros
from holdfast.core.model import Intent, Lease, Run, group_of
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.rows import Row

_KNOWN = """
    select id
    from run
    where id in (select value from json_each(?))
"""  # by the primary key

_HOLDERS = f"""
    select {rows.WHOLE_RUN}
    from run
    join intent on intent.run_id = run.id
    where run.key in (select value from json_each(?))
"""  # run_key

_SEATED = """
    select run.parent_location
    from run
    left join wait on wait.run_id = run.id and wait.location = ?
    where run.parent_id = ?
      and run.finished_at is null
      and wait.run_id is null
"""  # run_parent; wait by the primary key

_FREE_KEY = """
    update run
    set key = null
    where key = ?
    returning id
"""  # run_key


def create(desk: Desk, intents: Sequence[Intent], lease: LeaseRequest | None) -> Created:
    """Make runs, and lease at once those that are ready if `lease` asks for it. Raises before it writes."""
    now = desk.now()
    desk.flush()
    existing = _existing(desk, intents)
    fresh = [intent for intent, known in zip(intents, existing, strict=True) if known is None]
    leases = add(desk, fresh, lease, now)
    return Created(
        runs=tuple(
            CreatedRun(run_id=known, created=False)
            if known is not None
            else CreatedRun(run_id=intent.id, created=True, lease=leases.get(intent.id))
            for intent, known in zip(intents, existing, strict=True)
        ),
        now=now,
    )


def create_children(desk: Desk, intents: Sequence[Intent], now: Micros) -> None:
    """Make the children a checkpoint asks for, unless it asked before."""
    desk.flush()
    known = _known_ids(desk, intents)
    fresh = {intent.id: intent for intent in intents if intent.id not in known}
    seated = rules.seated(fresh.values(), lambda intent: taken(desk, intent.parent_id, intent.group))
    add(desk, list(seated), None, now)


def taken(desk: Desk, parent_id: str | None, group: str | None) -> int:
    """How many children of a run have a slot of their group."""
    seated: list[Row] = desk.all(_SEATED, rules.SLOT_LOCATION, parent_id)
    return sum(group_of(parent_id, location) == group for (location,) in seated)


def add(desk: Desk, intents: Sequence[Intent], lease: LeaseRequest | None, now: Micros) -> dict[str, Lease]:
    """Write new runs; the answer holds the leases of those that were leased at once."""
    runs: dict[str, Run] = {}
    keyed: dict[str, str] = {}
    leases: dict[str, Lease] = {}
    for intent in intents:
        run = rules.new_run(intent, now)
        if run.key is not None:
            _free_key(desk, run.key, run.id, now)
            if (twin := keyed.get(run.key)) is not None:
                runs[twin] = replace(runs[twin], key=None)
            keyed[run.key] = run.id
        if intent.is_parked:
            desk.wait(run.id, (rules.parking(run),))
        if lease is None or run.ready_at is None or run.ready_at > now or run.type in desk.ruled_types():
            desk.news.ready.add(run.type)
        else:
            before, run = run, rules.claimed(run, lease, now)
            desk.note(audit.of_claim(before, run, now))
            leases[run.id] = Lease(run=run)
        runs[run.id] = run
    if runs:
        desk.add(list(runs.values()))
    return leases


def _existing(desk: Desk, intents: Sequence[Intent]) -> list[str | None]:
    """For each intent the run that already stands for it, if any. Raises before anything is written."""
    known = _known_ids(desk, intents)
    holders = _holders(desk, intents)
    first: dict[str, Intent] = {}
    found: list[str | None] = []
    for index, intent in enumerate(intents):
        if intent.id in known:
            found.append(intent.id)
            continue
        if intent.key is None:
            known.add(intent.id)  # the same id twice in one call is one run
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
    """Who has the intent's key, an earlier intent of the call or a run, and what follows from it."""
    if twin is not None:
        return twin.id, rules.key_verdict(rules.new_run(twin, 0), replace(intent, reuse="never"))
    if holder is not None:
        return holder.id, rules.key_verdict(holder, intent)
    return "", "free"


def _known_ids(desk: Desk, intents: Sequence[Intent]) -> set[str]:
    found: list[Row] = desk.all(_KNOWN, rows.json_of([intent.id for intent in intents]))
    return {id for (id,) in found}


def _holders(desk: Desk, intents: Sequence[Intent]) -> dict[str, Run]:
    keys = [intent.key for intent in intents if intent.key is not None]
    if not keys:
        return {}
    holders = map(rows.whole_run_of, desk.all(_HOLDERS, rows.json_of(keys)))
    return {run.key: run for run in holders if run.key is not None}


def _free_key(desk: Desk, key: str, by: str, now: Micros) -> None:
    """Take a key from the run that has it."""
    for (run_id,) in desk.all(_FREE_KEY, key):
        desk.forget([run_id])  # nothing of it is lost: everything was flushed before this began
        desk.note(audit.of_key_reuse(run_id, key, by, now))
