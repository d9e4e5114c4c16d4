"""Queues: an event of a queue goes to one run that waits, and back if that run does not take it after all."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import rules
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Run, Wait
from holdfast.core.topics import HANDED_EXPIRY, TAKEN_RETENTION, may_be_handed
from holdfast.stores.sqlite import inboxes, rows
from holdfast.stores.sqlite.desk import Desk

_log = logging.getLogger("holdfast.store")

_IN_LINE = f"""
    select run_id, {rows.WAIT_COLUMNS}
    from wait indexed by wait_turn
    where topic = ?
      and kind = 'event'
    order by since, run_id
"""

_HAND = f"""
    update event
    set state = 'handed', holder = ?, expires_at = {HANDED_EXPIRY}
    where number = ?
"""  # by the primary key

_TAKE = """
    update event
    set state = 'taken', holder = ?, expires_at = ?
    where number = ?
"""  # by the primary key

_EXCLUSIVE = f"""
    select {rows.ARRIVAL_COLUMNS}
    from inbox indexed by inbox_exclusive
    where run_id = ?
      and is_exclusive = 1
    order by number
"""

_DROP_ARRIVAL = """
    delete from inbox
    where run_id = ?
      and number = ?
"""  # by the primary key

# It may have been forgotten since it was taken, and be there again because the run was rewound.
_RETURN = """
    insert into event (number, topic, id, payload, at, reached, state)
    values (?1, ?2, 'restored:' || ?1, ?3, ?4, 0, 'pending')
    on conflict (number) do update
    set state = 'pending', holder = null, expires_at = null
"""


def hand_on(desk: Desk, arrival: Arrival, now: Micros) -> bool:
    """Give a pending event to the run that has waited longest for one; without any it stays pending."""
    desk.flush_waits()
    for row in desk.connection.execute(_IN_LINE, (arrival.name,)):
        try:
            run, wait = desk.run(row[0]), rows.wait_of(row[1:])
        except rows.OddRow as error:
            _log.warning("event of topic %s passes over run %s: %s", arrival.name, row[0], error)
            continue
        if run is None or not may_be_handed(run) or not rules.accepts(wait, arrival):
            continue
        if not inboxes.is_satisfied(desk, run, wait):
            break
    else:
        return False
    hand(desk, run, arrival, now)
    return True


def hand(desk: Desk, run: Run, arrival: Arrival, now: Micros) -> None:
    """Give an event to a run, and to no other as long as that wants it."""
    desk.connection.execute(_HAND, (run.id, int(arrival.ref or 0)))
    inboxes.deliver(desk, run, replace(arrival, number=run.arrivals + 1), now)


def take(desk: Desk, run_id: str, ref: str, now: Micros) -> None:
    """A run has taken an event for good."""
    desk.connection.execute(_TAKE, (run_id, now + TAKEN_RETENTION, int(ref)))


def give_back(desk: Desk, run_id: str, waits: Sequence[Wait], now: Micros) -> None:
    """Hand on each event of a queue that a run has in its inbox and does not wait for any more."""
    for row in desk.all(_EXCLUSIVE, run_id):
        arrival = rows.arrival_of(row)
        if any(rules.accepts(wait, arrival) for wait in waits):
            continue
        desk.connection.execute(_DROP_ARRIVAL, (run_id, arrival.number))
        desk.connection.execute(_RETURN, (int(arrival.ref or 0), arrival.name, arrival.payload or "null", arrival.at))
        hand_on(desk, arrival, now)
