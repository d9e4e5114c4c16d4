"""Limits: who has slots of which limit, and who waits for them. Who gets one is decided in `holdfast.stores.limits`.

Rows of `slot` are written at once, not with the runs they belong to: the next question is how many there are.
"""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core import limits, rules
from holdfast.core.clock import Micros
from holdfast.core.limits import Window
from holdfast.core.model import AuditFact, Run, TypeRule, Wait
from holdfast.core.ports import SlotUse
from holdfast.stores import limits as deciding
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.desk import Desk

_TAKEN = """
    select count(*)
    from slot
    where name = ?
"""  # by the primary key

_TAKE = """
    insert into slot (name, run_id)
    values (?, ?)
    on conflict (name, run_id) do nothing
"""

_GIVE_BACK = """
    delete from slot
    where name = ?
      and run_id = ?
"""  # by the primary key

FIRST = f"""
    select run_id
    from wait indexed by wait_slot
    where topic = ?
      and kind = 'slot'
      and location = '{rules.LIMIT_LOCATION}'
    order by after, since, run_id
    limit 1
"""

FIRST_AT_LEVEL = f"""
    select run_id
    from wait indexed by wait_slot
    where topic = ?
      and kind = 'slot'
      and location = '{rules.LIMIT_LOCATION}'
      and after = ?
    order by since, run_id
    limit 1
"""

# `!` is the character after the blank, behind which the tags come.
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

_COUNTED = """
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

_TAGS = """
    select tags
    from intent
    where run_id = ?
"""  # by the primary key

_WINDOW = """
    select rate_window
    from type
    where name = ?
"""  # by the primary key

_KEEP_WINDOW = """
    update type
    set rate_window = ?
    where name = ?
"""  # by the primary key

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
"""  # reads all who have one or wait

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


def is_waiting(desk: Desk, run_id: str) -> bool:
    """Whether a run waits for a slot of its type."""
    return limits.parked_at(desk.waits(run_id)) is not None


def leave(desk: Desk, run: Run, now: Micros, *, has_waited: bool) -> None:
    """A run needs no slots any more, or has waited for some until now: it gives back its own, and waits for none."""
    deciding.leave(DeskBook(desk), run, now, has_waited=has_waited)


def apply(desk: Desk, rule: TypeRule, now: Micros) -> None:
    """Have the limits of a type be those of a rule."""
    deciding.apply(DeskBook(desk), rule, now)


def uses(connection: apsw.Connection, type: str | None) -> list[SlotUse]:
    """Who has slots and who waits for them, by their names."""
    found = [(name, used, waiting) for name, used, waiting in connection.execute(_USES)]
    mine = found if type is None else [one for one in found if limits.is_of(one[0], type)]
    return [SlotUse(name=name, used=used, waiting=waiting) for name, used, waiting in mine]


def stray(connection: apsw.Connection) -> int:
    """How many slots are taken by nobody who could go on, or had without being taken: there are none."""
    count: int = connection.execute(_STRAY).get
    return count


class DeskBook:
    """The desk as the book in which limits are kept."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.has_let_go = False
        """Whether anybody who waited was made ready."""

    def rule(self, type: str) -> TypeRule | None:
        rule = self._desk.ruled_types().get(type)
        return rule if rule is not None and rule.is_limited else None

    def window(self, type: str) -> Window:
        found = self._desk.one(_WINDOW, type)
        return Window() if found is None or found[0] is None else _decode_window(found[0])

    def keep_window(self, type: str, window: Window) -> None:
        text = rows.json_of(window) if window != Window() else None
        self._desk.connection.execute(_KEEP_WINDOW, (text, type))

    def taken(self, slot: str) -> int:
        found = self._desk.one(_TAKEN, slot)
        return found[0] if found else 0

    def counted(self, type: str) -> Sequence[Run]:
        self._desk.flush()
        names = limits.type_slot(type), limits.rate_slot(type)
        return [self.run(run_id) for (run_id,) in self._desk.all(_COUNTED, type, *names)]

    def key_queues(self, type: str) -> Sequence[str]:
        self._desk.flush_waits()
        return [queue for (queue,) in self._desk.all(_KEY_QUEUES, limits.type_slot(type), type)]

    def let_all_go(self, type: str, now: Micros) -> None:
        for queue in (limits.type_slot(type), limits.rate_slot(type), *self.key_queues(type)):
            while (run := self.first(queue)) is not None:
                waits = self.waits(run.id)
                wait = limits.parked_at(waits)
                assert wait is not None
                self.wait(run.id, limits.without(waits))
                self.put(limits.let_go(run, wait.since, now))

    def first(self, queue: str) -> Run | None:
        self._desk.flush_waits()
        found = self._desk.one(FIRST, queue)
        return None if found is None else self.run(found[0])

    def heads(self, queue: str) -> Sequence[Run]:
        first = self.first(queue)
        if first is None:
            return ()
        beside = [self._desk.one(FIRST_AT_LEVEL, queue, level) for level in limits.levels_beside(limits.level_of(first))]
        return [first, *(self.run(found[0]) for found in beside if found is not None)]

    def run(self, run_id: str) -> Run:
        run = self._desk.run(run_id)
        assert run is not None
        rule = self._desk.ruled_types().get(run.type)
        if rule is None or not rule.per_key or run.tags:
            return run
        found = self._desk.one(_TAGS, run_id)
        return replace(run, tags=rows.tags_of(found[0])) if found is not None and found[0] else run

    def waits(self, run_id: str) -> Sequence[Wait]:
        return self._desk.waits(run_id)

    def put(self, run: Run) -> None:
        before = self._desk.run(run.id)
        had = before.slots if before is not None else ()
        if had != run.slots:
            self._desk.connection.executemany(_GIVE_BACK, [(slot, run.id) for slot in had])
            self._desk.connection.executemany(_TAKE, [(slot, run.id) for slot in run.slots])
        self._desk.put(run)

    def wait(self, run_id: str, waits: Sequence[Wait]) -> None:
        self._desk.wait(run_id, waits)

    def note(self, fact: AuditFact) -> None:
        run = self._desk.run(fact.run_id)
        self._desk.note_often(fact, (run.token if run is not None else 0) or 1)

    def tell_ready(self, type: str) -> None:
        self.has_let_go = True
        self._desk.news.ready.add(type)
