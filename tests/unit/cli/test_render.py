"""The format of `--json`. A change that breaks a test here breaks users' scripts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from holdfast.cli import render
from holdfast.core.errors import ErrorRecord
from holdfast.core.model import WorkerRecord
from holdfast.core.ports import Finding
from holdfast.engine.store_info import WorkerInfo
from holdfast.typing import AuditInfo
from tests.unit.cli.test_timeline import ZERO, entry, run, snapshot

RUN_KEYS = [
    "id",
    "type",
    "state",
    "payload",
    "result",
    "error",
    "key",
    "priority",
    "tags",
    "attempt",
    "generation",
    "parent_id",
    "worker",
    "created_at",
    "updated_at",
    "finished_at",
    "ready_at",
    "deleted_at",
    "waits",
    "unreadable",
]
ENTRY_KEYS = [
    "location",
    "kind",
    "state",
    "attempts",
    "result",
    "error",
    "started_at",
    "finished_at",
    "retry_at",
    "ref",
    "unreadable",
]


def test_a_run_always_has_the_same_keys() -> None:
    value = render.run_json(run(payload={"a": 1}, tags={"shop": "x"}))

    assert list(value) == RUN_KEYS
    assert value["state"] == "running"
    assert value["created_at"] == "2030-01-31T12:00:00.000000Z"
    assert value["finished_at"] is None


def test_an_entry_always_has_the_same_keys() -> None:
    value = render.entry_json(entry("charge", 0, 1, result={"ok": True}))

    assert list(value) == ENTRY_KEYS
    assert (value["kind"], value["state"], value["result"]) == ("step", "done", {"ok": True})


def test_an_error_contains_its_cause() -> None:
    error = ErrorRecord(type="StepFailed", message="x", cause=ErrorRecord(type="ValueError", message="y", attempts=2))

    assert render.error_json(error) == {
        "type": "StepFailed",
        "message": "x",
        "attempts": 0,
        "traceback": "",
        "cause": {"type": "ValueError", "message": "y", "attempts": 2, "traceback": "", "cause": None},
    }


def test_a_snapshot_contains_everything_about_a_run() -> None:
    value = render.snapshot_json(snapshot(run(), entry("charge", 0, 1)))

    assert list(value) == ["run", "explanation", "plan", "values", "history", "audit", "flow"]


def test_the_other_records_have_fixed_keys_too() -> None:
    worker = WorkerRecord(id="w", name="n", host="h", pid=1, types=("a",), concurrency=2)

    assert list(render.worker_json(WorkerInfo.of(worker, held=0, is_alive=True))) == (
        ["id", "name", "host", "pid", "types", "concurrency", "started_at", "heartbeat_at", "is_alive", "held"]
    )
    assert render.finding_json(Finding(level="ok", subject="s", text="t")) == {
        "level": "ok",
        "subject": "s",
        "text": "t",
    }
    assert render.audit_json(AuditInfo(event="created", at=ZERO, data={"type": "a"})) == {
        "event": "created",
        "at": "2030-01-31T12:00:00.000000Z",
        "by": None,
        "data": {"type": "a"},
    }


def test_times_are_written_in_utc() -> None:
    eastern = datetime(2030, 1, 31, 13, tzinfo=timezone(timedelta(hours=1)))

    assert render.time_json(eastern) == render.time_json(datetime(2030, 1, 31, 12, tzinfo=UTC))
