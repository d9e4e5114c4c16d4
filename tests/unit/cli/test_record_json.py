"""The format of `--json`. A change that breaks a test here breaks users' scripts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from holdfast.core.errors import ErrorRecord
from holdfast.core.model import Arrival, Rate, Schedule, Topic, TypeRule, WaitKind, WorkerRecord
from holdfast.core.ports import Finding, Pruned, SchemaStatus
from holdfast.core.states import RunState
from holdfast.core.wire import as_json
from holdfast.engine.info import MessageInfo, ScheduleInfo, TopicInfo, TypeInfo, WaitInfo, WorkerInfo
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


def shown(record: Any) -> Any:
    return json.loads(as_json(record))


def test_a_run_always_has_the_same_keys() -> None:
    value = shown(run(payload={"a": 1}, tags={"shop": "x"}))

    assert list(value) == RUN_KEYS
    assert value["state"] == "running"
    assert value["created_at"] == "2030-01-31T12:00:00.000000Z"
    assert value["finished_at"] is None


def test_an_entry_always_has_the_same_keys() -> None:
    value = shown(entry("charge", 0, 1, result={"ok": True}))

    assert list(value) == ENTRY_KEYS
    assert (value["kind"], value["state"], value["result"]) == ("step", "done", {"ok": True})


def test_a_wait_says_how_many_children_have_to_end() -> None:
    wait = WaitInfo(location="all", kind=WaitKind.CHILDREN, names=("g",), since=ZERO, deadline=None, count=3)

    assert shown(wait) == {
        "location": "all",
        "kind": "children",
        "names": ["g"],
        "since": "2030-01-31T12:00:00.000000Z",
        "deadline": None,
        "count": 3,
    }


def test_a_message_says_whether_its_payload_can_be_read() -> None:
    arrivals = [Arrival(number=1, kind=WaitKind.MESSAGE, name="go", at=0, payload=text, ref="m") for text in "1?"]
    good, odd = [shown(MessageInfo.of(arrival)) for arrival in arrivals]

    assert list(good) == list(odd) == ["id", "name", "payload", "sent_at", "unreadable"]
    assert (good["payload"], good["unreadable"]) == (1, None)
    assert odd["payload"] is None
    assert odd["unreadable"].startswith("payload: JSON is malformed")


def test_an_error_contains_its_cause() -> None:
    error = ErrorRecord(type="StepFailed", message="x", cause=ErrorRecord(type="ValueError", message="y", attempts=2))
    rest: dict[str, Any] = {"types": [], "traceback": "", "locations": []}

    cause = {"type": "ValueError", "message": "y", "attempts": 2, "cause": None, **rest}
    assert shown(error) == {"type": "StepFailed", "message": "x", "attempts": 0, "cause": cause, **rest}


def test_a_snapshot_contains_everything_about_a_run() -> None:
    value = shown(snapshot(run(), entry("charge", 0, 1)))

    assert list(value) == ["run", "explanation", "plan", "values", "history", "audit", "flow", "workers"]


def test_lengths_of_time_are_seconds() -> None:
    topic = shown(TopicInfo.of(Topic(name="t", retention=1_500_000)))
    schedule = shown(ScheduleInfo.of(Schedule(name="s", type="t", payload="[1]", every=2_000_000, zone="UTC")))
    rule = TypeRule(name="t", rate=Rate(count=5, period=60_000_000), retention=3_000_000)
    known = TypeInfo.of(rule, (), {RunState.FAILED: 1}, 0)

    assert topic == {"name": "t", "mode": "fanout", "retention_seconds": 1.5, "max_pending": 10_000}
    assert (schedule["every_seconds"], schedule["jitter_seconds"], schedule["payload"]) == (2.0, 0.0, [1])
    assert (shown(known)["rate"], shown(known)["retention_seconds"]) == ({"count": 5, "seconds": 60.0}, 3.0)
    assert shown(known)["counts"] == {"failed": 1}
    assert known.rate == (5, timedelta(minutes=1))


def test_the_other_records_have_fixed_keys_too() -> None:
    worker = WorkerRecord(id="w", name="n", host="h", pid=1, types=("a",), concurrency=2)

    assert list(shown(WorkerInfo.of(worker, held=0, is_alive=True))) == (
        ["id", "name", "host", "pid", "types", "concurrency", "started_at", "heartbeat_at", "is_alive", "held"]
    )
    assert shown(SchemaStatus(current=0, wanted=1)) == {
        "current": 0,
        "wanted": 1,
        "compatible_from": 0,
        "pending": [],
        "applied": [],
    }
    assert shown(Finding(level="ok", subject="s", text="t")) == {"level": "ok", "subject": "s", "text": "t"}
    assert list(shown(Pruned())) == (
        ["runs", "events", "dead_letters", "taken", "receipts", "replies", "flows", "has_more"]
    )
    assert shown(AuditInfo(event="created", at=ZERO, data={"type": "a"})) == {
        "event": "created",
        "at": "2030-01-31T12:00:00.000000Z",
        "by": None,
        "data": {"type": "a"},
    }


def test_times_are_written_in_utc() -> None:
    eastern = datetime(2030, 1, 31, 13, tzinfo=timezone(timedelta(hours=1)))

    assert as_json(eastern) == as_json(datetime(2030, 1, 31, 12, tzinfo=UTC)) == '"2030-01-31T12:00:00.000000Z"'
