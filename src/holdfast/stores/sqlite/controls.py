"""Controls: what a person has done to a run. The audit keeps the request, so that a repeat of it changes nothing."""

# ruff: noqa: S608 - statements are put together from constants of ours; what users give is only ever bound

from __future__ import annotations

from typing import assert_never

from holdfast.core import audit, retention, revision, rules
from holdfast.core.checkpoint import Cancel, Control, Delete, Fork, Pause, Recover, Resume, Rewind, Wake
from holdfast.core.clock import Micros
from holdfast.core.errors import RunNotFound
from holdfast.core.model import Run
from holdfast.stores.sqlite import claims, moves, revisions, rows
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.histories import history

_WAS_ASKED = f"""
    select 1
    from audit
    where run_id = ?
      and data ->> '{audit.REQUEST}' = ?
    limit 1
"""  # audit_run

_FREE_KEY = """
    update run
    set key = null
    where id = ?
"""  # by the primary key


def control(desk: Desk, run_id: str, request: Control) -> bool | None:
    """Apply a control request. Raises before it writes."""
    desk.flush()  # what others of this transaction have written, which is read here by other ways than the desk's
    run, now = desk.run(run_id), desk.now()
    if run is None:
        raise RunNotFound(f"there is no run {run_id}")
    if desk.one(_WAS_ASKED, run_id, request.id) is not None:
        return True
    if run.deleted_at is not None:
        raise RunNotFound(f"there is no run {run_id}")
    return _carry_out(desk, run, request, now)


def _carry_out(desk: Desk, run: Run, request: Control, now: Micros) -> bool | None:
    match request:
        case Cancel():
            return moves.cancel(desk, run.id, request, now)
        case Pause():
            return _change(desk, run, rules.paused(run, now), request, now)
        case Resume():
            return _change(desk, run, rules.resumed(run, desk.waits(run.id), now), request, now)
        case Wake():
            return _change(desk, run, rules.roused(run, desk.waits(run.id), now), request, now)
        case Rewind() | Recover():
            return revisions.revise(desk, run.id, request, now)
        case Fork():
            return _fork(desk, run.id, request, now)
        case Delete():
            return _delete(desk, run, request, now)
        case _:
            assert_never(request)


def _change(desk: Desk, run: Run, after: Run | None, request: Pause | Resume | Wake, now: Micros) -> bool:
    if after is None:
        return False
    moves.move(desk, run, after, now, audit.of_change(after, request, now))
    if after.is_held:
        desk.news.arrived.add(after.id)  # so that its holder looks
    return True


def _fork(desk: Desk, run_id: str, request: Fork, now: Micros) -> bool:
    (row,) = desk.all(claims.BY_ID, run_id)
    source = rows.whole_run_of(row)
    revision.check_free(source, is_forced=request.force)
    forked, entries = revision.fork(source, history(desk.connection, run_id), request, now)
    if desk.run(forked.id) is not None:
        return False
    desk.add([forked])
    for entry in entries:
        desk.record(forked.id, forked.token, entry, now)
    for fact in audit.of_fork(source, request, now):
        desk.note(fact)
    desk.news.ready.add(forked.type)
    return True


def _delete(desk: Desk, run: Run, request: Delete, now: Micros) -> bool:
    """Take a run out of sight. One that lives ends first, as by any cancel."""
    revision.check_free(run, is_forced=request.force)
    moves.cancel(desk, run.id, rules.deletion(request), now)
    desk.put(retention.deleted(desk.run(run.id) or run, now))
    desk.note(audit.of_control(run.id, "deleted", request, now))
    desk.connection.execute(_FREE_KEY, (run.id,))
    return True
