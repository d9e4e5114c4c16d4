"""Starts: intents become runs, all of one call or none of them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Created, CreatedRun, LeaseRequest
from holdfast.core.clock import Micros
from holdfast.core.model import Intent
from holdfast.stores.memory import claims
from holdfast.stores.memory.state import Record, State


def create(state: State, intents: Sequence[Intent], lease: LeaseRequest | None, now: Micros) -> Created:
    """Make runs, and lease at once those that are ready if `lease` asks for it. Raises before it writes."""
    existing = _existing(state, intents)
    return Created(
        runs=tuple(
            CreatedRun(run_id=known, created=False) if known is not None else _add(state, intent, lease, now)
            for intent, known in zip(intents, existing, strict=True)
        ),
        now=now,
    )


def create_children(state: State, intents: Sequence[Intent], now: Micros) -> None:
    """Make the children a checkpoint asks for, unless it asked before."""
    fresh = [intent for intent in intents if intent.id not in state.records]
    for intent in rules.seated(fresh, lambda intent: taken(state, intent.parent_id, intent.group)):
        _add(state, intent, None, now)


def taken(state: State, parent_id: str | None, group: str | None) -> int:
    """How many children of a run have a slot of their group."""
    siblings = map(state.records.__getitem__, state.siblings(parent_id or ""))
    alive = (record for record in siblings if record.run.group == group and not record.run.state.is_end)
    return sum(not rules.is_parked(record.waits) for record in alive)


def _existing(state: State, intents: Sequence[Intent]) -> list[str | None]:
    """For each intent the run that already stands for it, if any. Raises before anything is written."""
    first: dict[str, Intent] = {}
    made: set[str] = set()
    found: list[str | None] = []
    for index, intent in enumerate(intents):
        if intent.id in state.records or intent.id in made:
            found.append(intent.id)
            continue
        if intent.key is None:
            made.add(intent.id)  # the same id twice in one call is one run
            found.append(None)
            continue
        stands, verdict = _key_verdict(state, intent, intent.key, first.get(intent.key))
        if verdict == "conflict":
            raise rules.key_conflict(intent.key, stands, index)
        if verdict == "free":
            first[intent.key] = intent
            made.add(intent.id)
        found.append(stands if verdict == "same" else None)
    return found


def _key_verdict(
    state: State, intent: Intent, key: str, twin: Intent | None
) -> tuple[str, Literal["free", "same", "conflict"]]:
    """Who has the intent's key, an earlier intent of the call or a run, and what follows from it."""
    if twin is not None:
        return twin.id, rules.key_verdict(rules.new_run(twin, 0), replace(intent, reuse="never"))
    if (holder := state.keys.get(key)) is not None:
        return holder, rules.key_verdict(state.records[holder].run, intent)
    return "", "free"


def _add(state: State, intent: Intent, lease: LeaseRequest | None, now: Micros) -> CreatedRun:
    run = rules.new_run(intent, now)
    record = state.records[run.id] = Record(run)
    if run.key is not None:
        _take_key(state, run.key, run.id, now)
    if run.parent_id is not None:
        state.children[run.parent_id].append(run.id)
    if intent.is_parked:
        record.waits = (wait := rules.parking(run),)
        heapq.heappush(state.parked[run.group or ""], (wait.after, wait.since, run.id))
    if lease is None or run.ready_at is None or run.ready_at > now or not _is_free(state, run.type):
        state.news.ready.add(run.type)
        return CreatedRun(run_id=run.id, created=True)
    return CreatedRun(run_id=run.id, created=True, lease=claims.lease(state, record, lease, now))


def _is_free(state: State, type: str) -> bool:
    """Whether nothing is to be looked at before a run of this type is leased."""
    rule = state.types.get(type)
    return rule is None or (rule.is_enabled and not rule.is_limited)


def _take_key(state: State, key: str, run_id: str, now: Micros) -> None:
    """Give a run a key, and take it from the run that has it."""
    if (holder := state.keys.get(key)) is not None:
        record = state.records[holder]
        record.run = replace(record.run, key=None)
        state.note(record, audit.of_key_reuse(holder, key, run_id, now))
    state.keys[key] = run_id
