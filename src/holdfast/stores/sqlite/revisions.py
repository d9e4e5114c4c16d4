"""Revisions: histories are changed. What becomes of them is decided in `holdfast.stores.revisions`."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from holdfast.core import audit, rules
from holdfast.core.checkpoint import Recover, Rewind
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, AuditFact, Entry, Run, Wait
from holdfast.core.revision import Revised
from holdfast.stores import revisions as deciding
from holdfast.stores.sqlite import claims, inboxes, moves, rows, starts
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.histories import history

_FACTS = f"""
    select {rows.AUDIT_COLUMNS}
    from audit
    where run_id = ?
      and (event = '{audit.KEY_REUSED}' or data ->> '{audit.REQUEST}' is not null)
    order by number
"""  # audit_run

_KEY_HOLDER = """
    select id
    from run
    where key = ?
"""  # run_key

_TAKE_KEY = """
    update run
    set key = ?
    where id = ?
"""  # by the primary key

_DROP_ENTRY = """
    delete from entry
    where run_id = ?
      and location = ?
"""  # by the primary key


def revise(desk: Desk, run_id: str, request: Rewind | Recover, now: Micros) -> bool | None:
    """Change the history and the inbox of a run. It waits for nothing until its code has asked again."""
    book = DeskBook(desk, now)
    run = book.run(run_id)
    assert run is not None, "it was looked up a moment ago"
    return deciding.revise(book, run, request, now)


class DeskBook:
    """A transaction as the book in which histories are changed. It is flushed before it is read from."""

    def __init__(self, desk: Desk, now: Micros) -> None:
        self._desk = desk
        self._now = now

    def expect(self, run_ids: Collection[str], *, with_histories: bool = False) -> None:
        """Nothing to do: here, it costs as much to read them one by one."""

    def run(self, run_id: str) -> Run | None:
        row = self._desk.one(claims.BY_ID, run_id)
        return None if row is None else self._desk.completed(rows.whole_run_of(row))

    def history(self, run_id: str) -> Sequence[Entry]:
        return history(self._desk.connection, run_id)

    def entry(self, run_id: str, location: str) -> Entry | None:
        return self._desk.entry(run_id, location)

    def inbox(self, run_id: str) -> Sequence[Arrival]:
        run = self._desk.run(run_id)
        return () if run is None else self._desk.newer(run, 0)

    def facts(self, run_id: str) -> Sequence[AuditFact]:
        return [rows.fact_of(row) for row in self._desk.all(_FACTS, run_id)]

    def key_holder(self, key: str) -> str | None:
        row = self._desk.one(_KEY_HOLDER, key)
        return None if row is None else str(row[0])

    def seated(self, child: Run) -> int:
        self._desk.flush()
        return starts.taken(self._desk, child.parent_id, child.group)

    def write(self, revised: Revised, waits: Sequence[Wait]) -> None:
        desk, run = self._desk, revised.run
        before = desk.run(run.id)
        assert before is not None, "it was read before"
        rewritten = (*revised.dropped, *(entry.location for entry in revised.reset))
        if rewritten:
            desk.connection.executemany(_DROP_ENTRY, [(run.id, location) for location in rewritten])
        for entry in revised.reset:
            desk.record(run.id, run.token, entry, self._now)
        inboxes.clear(desk, before)
        if revised.inbox:
            desk.connection.executemany(inboxes.ARRIVE, [rows.arrival_row(run.id, one) for one in revised.inbox])
        if before.is_held:
            desk.news.taken.add(run.id)
        moves.move(desk, before, run, self._now, revised.fact)
        desk.wait(run.id, tuple(waits))
        if run.key != before.key:
            desk.connection.execute(_TAKE_KEY, (run.key, run.id))

    def attach(self, child_id: str, location: str) -> None:
        child = self._desk.run(child_id)
        if child is not None:
            self._desk.put(replace(child, parent_location=location))

    def part_with(self, child_id: str) -> None:
        child = self._desk.run(child_id)
        if child is None:
            return
        if child.group is not None and not (child.state.is_end or rules.is_parked(self._desk.waits(child_id))):
            moves.hand_on_slot(self._desk, child, self._now)
        self._desk.put(replace(child, parent_location=None))
        moves.cancel(self._desk, child_id, rules.FORGOTTEN, self._now)
