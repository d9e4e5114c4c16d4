"""Types: what is known and was said of the types of runs."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Sequence

import apsw

from holdfast.core.model import TypeChange, TypeOffer, TypeRule
from holdfast.stores.sqlite import limits, rows
from holdfast.stores.sqlite.desk import Desk

_TYPES = f"""
    select {rows.TYPE_COLUMNS}
    from type
    order by name
"""  # all of them: there are few

_ONE = f"""
    select {rows.TYPE_COLUMNS}
    from type
    where name = ?
"""  # by the primary key

_PUT = f"""
    insert into type ({rows.TYPE_COLUMNS})
    values ({rows.placed(rows.TYPE_COLUMNS)})
    on conflict (name) do update
    set runtime = excluded.runtime, description = excluded.description, is_enabled = excluded.is_enabled,
        concurrency = excluded.concurrency, per_key = excluded.per_key, rate = excluded.rate,
        retention = excluded.retention, seen_by = excluded.seen_by, seen_at = excluded.seen_at
"""


def change(desk: Desk, changes: Sequence[TypeChange]) -> None:
    """Have types be otherwise. What their limits have kept waiting is looked at anew."""
    now = desk.now()
    for one in changes:
        before = _known(desk, one.name)
        after = one.applied_to(before)
        _put(desk, after)
        if before.limits != after.limits:
            limits.apply(desk, after, now)
        if after.is_enabled and not before.is_enabled:
            desk.news.ready.add(one.name)


def offer(desk: Desk, worker: str, offers: Sequence[TypeOffer]) -> None:
    """Note what a worker is ready to work on. What a person has said of a type stays."""
    now = desk.now()
    for one in offers:
        _put(desk, _known(desk, one.name).offered(one, worker, now))


def list_types(connection: apsw.Connection) -> list[TypeRule]:
    return [rows.type_of(row) for row in connection.execute(_TYPES)]


def _known(desk: Desk, name: str) -> TypeRule:
    row = desk.one(_ONE, name)
    return TypeRule(name=name) if row is None else rows.type_of(row)


def _put(desk: Desk, rule: TypeRule) -> None:
    desk.types = None
    desk.connection.execute(_PUT, rows.type_row(rule))
