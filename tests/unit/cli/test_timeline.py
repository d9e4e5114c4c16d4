"""The timeline of a run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import RunInfo, RunState
from holdfast.cli.output import text_of
from holdfast.cli.timeline import Scale, timeline
from holdfast.cli.view import Snapshot, run_lines, timeline_lines
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import EntryKind, EntryState, WaitKind
from holdfast.typing import AuditInfo, EntryInfo, WaitInfo

ZERO = datetime(2030, 1, 31, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return ZERO + timedelta(seconds=seconds)


def run(**changes: Any) -> RunInfo:
    values: dict[str, Any] = {
        "id": "01a1e122-9050-7001-8001-000000000001",
        "type": "shop.order.v1",
        "state": RunState.RUNNING,
        "payload": {},
        "result": None,
        "error": None,
        "key": None,
        "priority": 100,
        "tags": {},
        "attempt": 1,
        "generation": 1,
        "parent_id": None,
        "worker": None,
        "created_at": ZERO,
        "updated_at": ZERO,
        "finished_at": None,
        "ready_at": None,
        "deleted_at": None,
        "waits": (),
    }
    return RunInfo(**values | changes)


def entry(location: str, begin: float, end: float | None, **changes: Any) -> EntryInfo:
    values: dict[str, Any] = {
        "location": location,
        "kind": EntryKind.STEP,
        "state": EntryState.STARTED if end is None else EntryState.DONE,
        "attempts": 1,
        "result": None,
        "error": None,
        "started_at": at(begin),
        "finished_at": None if end is None else at(end),
        "retry_at": None,
        "ref": None,
    }
    return EntryInfo(**values | changes)


def snapshot(info: RunInfo, *entries: EntryInfo, audit: tuple[AuditInfo, ...] = ()) -> Snapshot:
    return Snapshot(
        info=info, entries=entries, audit=audit, values={}, workers={"w2": "second"}, explanation="It is so."
    )


def drawn(seen: Snapshot, now: float, width: int | None = None) -> list[str]:
    return ["".join(map(text_of, line)) for line in timeline_lines(seen, at(now), width)]


def test_bars_start_and_end_at_their_times() -> None:
    line = timeline(run(), [entry("a", 0, 1), entry("b", 1, 4)], (), {}, at(4))
    scale = Scale(line, 40)

    assert [scale.columns(item.begin, item.end) for item in line.items] == [(0, 10), (10, 40)]


def test_an_operation_without_duration_is_still_visible() -> None:
    line = timeline(run(), [entry("a", 0, 0), entry("b", 4, 4)], (), {}, at(4))

    assert [Scale(line, 40).columns(item.begin, item.end) for item in line.items] == [(0, 1), (39, 40)]


def test_a_run_without_duration_is_drawn() -> None:
    line = timeline(run(), [entry("a", 0, 0)], (), {}, at(0))

    assert [Scale(line, 40).columns(item.begin, item.end) for item in line.items] == [(0, 1)]


def test_a_long_wait_is_folded_and_shows_its_length() -> None:
    wait = entry("receive:approve", 1, 7201, kind=EntryKind.MESSAGE)
    rows = drawn(snapshot(run(), entry("a", 0, 1), wait, entry("b", 7201, 7202)), 7202)

    assert "⋯ 2 h ⋯" in rows[1]
    assert rows[0].count("█") > 5  # although it took a second of two hours


def test_a_period_without_records_is_a_separate_row() -> None:
    rows = drawn(snapshot(run(), entry("a", 0, 1), entry("b", 7201, 7202)), 7202)

    assert [row.split()[0] for row in rows] == ["✓", "⋯", "✓"]
    assert rows[1] == "  ⋯ 2 h ⋯"


def test_short_periods_are_not_folded() -> None:
    assert timeline(run(), [entry("a", 0, 1), entry("b", 9, 10)], (), {}, at(10)).folds == ()


def test_attempts_and_the_first_error_are_shown() -> None:
    failed = AuditInfo(event="retried", at=at(0.5), data={"location": "a", "attempt": 1, "error": "OSError: no"})
    (row,) = drawn(snapshot(run(), entry("a", 0, 1, attempts=2, result="ok"), audit=(failed,)), 1)

    assert "2 attempts  first OSError: no" in row
    assert row.endswith('→ "ok"')


def test_a_failed_step_shows_its_error() -> None:
    error = ErrorRecord(type="ValueError", message="no\x1b such card")
    (row,) = drawn(snapshot(run(), entry("a", 0, 1, state=EntryState.FAILED, error=error)), 1)

    assert row.startswith("✗ a")
    assert row.endswith("ValueError: no\\x1b such card")


def test_an_open_wait_is_shown_with_its_name() -> None:
    wait = WaitInfo(
        location="receive:approve", kind=WaitKind.MESSAGE, names=("approve",), since=at(1), deadline=at(3601)
    )
    rows = drawn(snapshot(run(state=RunState.SUSPENDED, waits=(wait,)), entry("a", 0, 1)), 2)

    assert rows[1].startswith("… receive:approve")
    assert rows[1].endswith("waits for message approve (at most 59 min more)")


def test_an_open_child_is_one_row_although_it_has_an_entry_and_a_wait() -> None:
    wait = WaitInfo(location="label", kind=WaitKind.CHILD, names=("c1",), since=at(1), deadline=None)
    child = entry("label", 1, None, kind=EntryKind.CHILD, ref="c1")

    assert len(drawn(snapshot(run(state=RunState.SUSPENDED, waits=(wait,)), child), 2)) == 1


def test_the_death_of_a_worker_is_marked_at_its_time() -> None:
    taken = AuditInfo(event="claimed", at=at(5), data={"worker": "w2", "token": 2, "crashes": 1, "lost": "w1"})
    rows = drawn(snapshot(run(), entry("a", 0, 1), entry("b", 5, 6), audit=(taken,)), 6)

    assert [row[:1] for row in rows] == ["✓", "†", "✓"]
    assert rows[1] == "† its worker died; taken over by second, 5.0 s after the start"


def test_a_very_long_history_shows_its_end() -> None:
    rows = drawn(snapshot(run(), *(entry(f"step-{number}", number, number + 1) for number in range(1000))), 1000)

    assert len(rows) == 201
    assert "800 earlier entries" in rows[0]
    assert "step-999" in rows[-1]


def test_rows_fit_a_narrow_terminal_as_well_as_a_wide_one() -> None:
    seen = snapshot(run(), entry("a" * 100, 0, 1))

    assert all("█" in drawn(seen, 1, width)[0] for width in (20, 80, 300))


def test_a_failed_run_shows_the_line_that_raised_and_its_causes() -> None:
    inner = '  File "/app/shop.py", line 7, in charge\n    raise ValueError("no")\n'
    outer = inner + '  File "/x/holdfast/runner/turn.py", line 1, in step\n    raise x\n'
    cause = ErrorRecord(type="ValueError", message="no", traceback=f"Traceback:\n{inner}")
    error = ErrorRecord(type="StepFailed", message="step failed", traceback=f"Traceback:\n{outer}", cause=cause)
    info = run(state=RunState.FAILED, error=error, finished_at=at(1))

    short = ["".join(map(text_of, line)) for line in run_lines(snapshot(info), at(1), None)]
    long = ["".join(map(text_of, line)) for line in run_lines(snapshot(info), at(1), None, is_verbose=True)]

    assert "failed after 1.0 s" in short
    assert "  caused by ValueError: no" in short
    assert short.count('    File "/app/shop.py", line 7, in charge') == 2
    assert not any("turn.py" in line for line in short)
    assert any("turn.py" in line for line in long)
