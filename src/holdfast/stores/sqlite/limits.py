"""Limits as rows: the slots that runs hold, and the windows of rates.

Rows of `slot` are written immediately, not with the runs they belong to: the next admission counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core import limits, rules
from holdfast.core.clock import Micros
from holdfast.core.limits import Window
from holdfast.core.model import Run, TypeRule
from holdfast.core.questions import SlotUse
from holdfast.stores.sqlite import rows

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction

_TAKEN = "select count(*) from slot where name = ?"  # by the primary key
_TAKE = rows.insertion("slot", "name, run_id") + " on conflict do nothing"
_GIVE_BACK = "delete from slot where name = ? and run_id = ?"  # by the primary key

# The tags follow a space in the name of a slot, and `!` is the character after the space.
_KEY_QUEUES = f"""
    select distinct wait.topic
    from wait indexed by wait_slot
    join run on run.id = wait.run_id
    where wait.topic > ?1 || ' '
      and wait.topic < ?1 || '!'
      and wait.kind = 'slot'
      and wait.location = '{rules.LIMIT_LOCATION}'
      and run.type = ?2
    order by wait.topic
"""

COUNTED = """
    select id
    from run indexed by run_held
    where worker is not null
      and type = ?1
    union
    select run.id
    from slot
    join run on run.id = slot.run_id
    where (slot.name in (?2, ?3) or (slot.name > ?2 || ' ' and slot.name < ?2 || '!'))
      and run.type = ?1
"""  # run_held; slot by the primary key

_TAGS = "select tags from intent where run_id = ?"  # by the primary key
_WINDOW = "select rate_window from type where name = ?"  # by the primary key
_KEEP_WINDOW = "update type set rate_window = ? where name = ?"  # by the primary key

_USES = f"""
    select name, sum(used), sum(waiting)
    from (
        select name, 1 as used, 0 as waiting
        from slot
        union all
        select topic, 0, 1
        from wait indexed by wait_slot
        where kind = 'slot'
          and location = '{rules.LIMIT_LOCATION}'
    )
    group by name
    order by name
"""  # reads all slots and all waits for one

_STRAY = """
    select
        (
            select count(*)
            from slot
            where not exists (
                select 1
                from run
                join json_each(run.slots) as had
                where run.id = slot.run_id
                  and had.value = slot.name
                  and (run.worker is not null or run.ready_at is not null)
            )
        ) + (
            select count(*)
            from run not indexed
            join json_each(run.slots) as had
            where run.slots is not null
              and not exists (select 1 from slot where slot.name = had.value and slot.run_id = run.id)
        )
"""  # reads every run

_decode_window = msgspec.json.Decoder(Window).decode


def uses(connection: apsw.Connection, type: str | None) -> list[SlotUse]:
    """Count the used slots and the waiting runs, by the name of the slot."""
    found = (SlotUse(name=name, used=used, waiting=waiting) for name, used, waiting in connection.execute(_USES))
    return [use for use in found if type is None or limits.is_of(use.name, type)]


def stray(connection: apsw.Connection) -> int:
    """Count the inconsistencies between slots and runs. Expected to be 0.

    A slot counts if its run does not list it, or is neither held nor ready. A slot that a run lists counts if its row
    is missing.
    """
    return int(connection.execute(_STRAY).get)


class SqliteLimits:
    """The slots of limits, by name."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._connection = transaction.connection
        self.released = 0

    def rule(self, type: str) -> TypeRule | None:
        rule = self._transaction.types.ruled().get(type)
        return rule if rule is not None and rule.is_limited else None

    def window(self, type: str) -> Window:
        found = self._connection.execute(_WINDOW, (type,)).get
        return Window() if found is None else _decode_window(found)

    def keep_window(self, type: str, window: Window) -> None:
        text = rows.json_of(window) if window != Window() else None
        self._connection.execute(_KEEP_WINDOW, (text, type))

    def taken(self, slot: str) -> int:
        return int(self._connection.execute(_TAKEN, (slot,)).get)

    def counted(self, type: str) -> Sequence[Run]:
        self._transaction.runs.flush()
        names = limits.type_slot(type), limits.rate_slot(type)
        return [self.tagged(run_id) for (run_id,) in self._transaction.all(COUNTED, type, *names)]

    def key_queues(self, type: str) -> Sequence[str]:
        self._transaction.waits.flush()
        return [queue for (queue,) in self._transaction.all(_KEY_QUEUES, limits.type_slot(type), type)]

    def release_all(self, type: str, now: Micros) -> None:
        waits = self._transaction.waits
        for queue in (limits.type_slot(type), limits.rate_slot(type), *self.key_queues(type)):
            while (run_id := waits.first(queue, rules.LIMIT_LOCATION)) is not None:
                of_run = waits.of(run_id)
                wait = limits.parked_at(of_run)
                assert wait is not None
                waits.put(run_id, limits.without(of_run))
                self.put(limits.release(self.tagged(run_id), wait.since, now))

    def tagged(self, run_id: str) -> Run:
        run = self._transaction.runs.get(run_id)
        assert run is not None
        rule = self._transaction.types.ruled().get(run.type)
        if rule is None or not rule.per_key or run.tags:
            return run
        tags = self._connection.execute(_TAGS, (run_id,)).get
        return replace(run, tags=rows.tags_of(tags)) if tags else run

    def put(self, run: Run) -> None:
        before = self._transaction.runs.get(run.id)
        had = before.slots if before is not None else ()
        if had != run.slots:
            self._connection.executemany(_GIVE_BACK, [(slot, run.id) for slot in had])
            self._connection.executemany(_TAKE, [(slot, run.id) for slot in run.slots])
        self._transaction.runs.put(run)
