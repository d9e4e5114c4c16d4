"""Pruning: what nobody needs any more goes away, a little at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import chain, islice
from typing import Any

from holdfast.core.clock import Micros
from holdfast.core.model import RECEIPT_RETENTION, DeadReason
from holdfast.core.ports import Pruned
from holdfast.core.retention import RUN_RETENTION
from holdfast.core.topics import REPLY_RETENTION, TAKEN_RETENTION, topic_of
from holdfast.stores.memory import letters, purging
from holdfast.stores.memory.state import Published, State

_Place = tuple[dict[str, Any], str]
"""Where something old is kept, and under which id."""


def prune(state: State, limit: int, now: Micros, *, retention: Micros = RUN_RETENTION, is_dry_run: bool) -> Pruned:
    """Remove at most `limit` of each kind; or only say how much that would be, and of runs all of it."""
    if is_dry_run:
        state = deepcopy(state)
    gone: list[Published] = []
    gone += _remove(state, _expired(state, now), "expired", limit, now)
    gone += _remove(state, _overflowing(state), "overflow", limit - len(gone), now)
    receipts = _forget(_old_receipts(state, now), limit)
    replies = _forget(_old_replies(state, now), limit)
    runs, has_more_runs = purging.purge(state, None if is_dry_run else limit, retention, now)
    return Pruned(
        runs=runs,
        events=sum(published.state == "open" for published in gone),
        dead_letters=sum(published.state == "pending" for published in gone),
        taken=sum(published.state == "taken" for published in gone),
        receipts=receipts,
        replies=replies,
        has_more=has_more_runs or limit in (len(gone), receipts, replies),
    )


def _remove(state: State, chosen: Iterable[Published], reason: DeadReason, limit: int, now: Micros) -> list[Published]:
    """Remove the oldest of these; the pending ones become dead letters."""
    oldest = sorted(chosen, key=lambda published: published.number)[:limit]
    for published in oldest:
        if published.state == "pending":
            letters.give_up_event(state, published, reason, now)
        else:
            state.events[published.event.topic].remove(published)
    return oldest


def _expired(state: State, now: Micros) -> Iterator[Published]:
    for published in chain.from_iterable(state.events.values()):
        retention = topic_of(published.event.topic, state.topics).retention
        if published.state == "taken":
            if published.taken_at <= now - TAKEN_RETENTION:
                yield published
        elif published.state != "handed" and published.at <= now - retention:
            yield published


def _overflowing(state: State) -> Iterator[Published]:
    """The oldest of each topic that are more than it may keep, of either kind."""
    for name, kept in state.events.items():
        limit = topic_of(name, state.topics).max_pending
        for kind in ("open", "pending"):
            waiting = [published for published in kept if published.state == kind]
            yield from waiting[: max(0, len(waiting) - limit)]


def _old_receipts(state: State, now: Micros) -> Iterator[_Place]:
    for record in state.records.values():
        yield from ((record.receipts, id) for id, at in record.receipts.items() if at <= now - RECEIPT_RETENTION)


def _old_replies(state: State, now: Micros) -> Iterator[_Place]:
    for record in state.records.values():
        yield from ((record.replies, id) for id, (_, at) in record.replies.items() if at <= now - REPLY_RETENTION)


def _forget(old: Iterator[_Place], limit: int) -> int:
    chosen = list(islice(old, limit))
    for kept, id in chosen:
        del kept[id]
    return len(chosen)
