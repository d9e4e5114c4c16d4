"""Families: the children of a run, found by their parent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.core import rules
from holdfast.core.model import group_of
from holdfast.stores.sqlite.rows import Row

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_TO_CANCEL = """
    select id
    from run
    where parent_id = ?
      and on_close = 'cancel'
      and finished_at is null
    order by created_at, id
"""  # run_parent, in its order

_DETACH = """
    update run
    set parent_location = null
    where parent_id = ?
      and finished_at is null
"""  # run_parent

_PARKED = """
    select run.id
    from run
    join wait on wait.run_id = run.id
    where run.parent_id = ?
      and run.finished_at is null
      and wait.location = ?
    order by run.created_at, run.id
"""  # run_parent, in its order; wait by the primary key

_SEATED = """
    select run.parent_location
    from run
    left join wait on wait.run_id = run.id and wait.location = ?
    where run.parent_id = ?
      and run.finished_at is null
      and wait.run_id is null
"""  # run_parent; wait by the primary key


class SqliteFamilies:
    """Children, by their parent."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def to_cancel(self, parent_id: str) -> Sequence[str]:
        # No flush: a child with an unwritten change may have ended meanwhile, and the caller checks that anyway.
        return [child_id for (child_id,) in self._transaction.all(_TO_CANCEL, parent_id)]

    def detach(self, parent_id: str) -> None:
        self._transaction.flush()
        self._transaction.connection.execute(_DETACH, (parent_id,))
        self._transaction.runs.forget_all()

    def parked(self, parent_id: str) -> Sequence[str]:
        self._transaction.flush()
        return [child_id for (child_id,) in self._transaction.all(_PARKED, parent_id, rules.SLOT_LOCATION)]

    def seated(self, parent_id: str | None, group: str | None) -> int:
        self._transaction.flush()
        seated: list[Row] = self._transaction.all(_SEATED, rules.SLOT_LOCATION, parent_id)
        return sum(group_of(parent_id, location) == group for (location,) in seated)
