"""The JSON output of `--json`: a stable interface for programs. Only add to it, never change it.

Times are ISO 8601 in UTC with microseconds. A value that is unknown or does not apply is null. Every key is always
present.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from holdfast.cli.view import Snapshot
from holdfast.config.configuration import SettingOrigin
from holdfast.config.settings import Setting
from holdfast.core.codec import json_flaw
from holdfast.core.errors import ErrorRecord
from holdfast.core.plan import PlanProgress
from holdfast.core.ports import Finding, Pruned
from holdfast.core.states import RunState
from holdfast.engine.check import RunCheck
from holdfast.engine.flow_view import FlowPlace, FlowView, FlowWait
from holdfast.engine.flows import FlowInfo
from holdfast.engine.info import AuditInfo, EntryInfo, MessageInfo, RunInfo, WaitInfo
from holdfast.engine.store_info import DeadLetterInfo, ScheduleInfo, TopicInfo, TypeInfo, WorkerInfo

Json = dict[str, Any]


def run_json(info: RunInfo) -> Json:
    return {
        "id": info.id,
        "type": info.type,
        "state": state_json(info.state),
        "payload": info.payload,
        "result": info.result,
        "error": error_json(info.error),
        "key": info.key,
        "priority": info.priority,
        "tags": info.tags,
        "attempt": info.attempt,
        "generation": info.generation,
        "parent_id": info.parent_id,
        "worker": info.worker,
        "created_at": time_json(info.created_at),
        "updated_at": time_json(info.updated_at),
        "finished_at": time_json(info.finished_at),
        "ready_at": time_json(info.ready_at),
        "deleted_at": time_json(info.deleted_at),
        "waits": [wait_json(wait) for wait in info.waits],
        "unreadable": info.unreadable,
    }


def wait_json(wait: WaitInfo) -> Json:
    return {
        "location": wait.location,
        "kind": wait.kind.value,
        "names": list(wait.names),
        "since": time_json(wait.since),
        "deadline": time_json(wait.deadline),
    }


def entry_json(entry: EntryInfo) -> Json:
    return {
        "location": entry.location,
        "kind": entry.kind.value,
        "state": entry.state.value,
        "attempts": entry.attempts,
        "result": entry.result,
        "error": error_json(entry.error),
        "started_at": time_json(entry.started_at),
        "finished_at": time_json(entry.finished_at),
        "retry_at": time_json(entry.retry_at),
        "ref": entry.ref,
        "unreadable": entry.unreadable,
    }


def snapshot_json(snapshot: Snapshot) -> Json:
    return {
        "run": run_json(snapshot.info),
        "explanation": snapshot.explanation,
        "plan": plan_json(snapshot.plan),
        "values": {name: _value_json(text) for name, text in snapshot.values.items()},
        "history": [entry_json(entry) for entry in snapshot.entries],
        "audit": [audit_json(fact) for fact in snapshot.audit],
        "flow": None if snapshot.flow is None else flow_view_json(snapshot.flow),
    }


def flow_view_json(view: FlowView) -> Json:
    return {
        "type": view.type,
        "version": view.version,
        "source": view.source,
        "note": view.note,
        "saved_at": time_json(view.saved_at),
        "waits": [_flow_wait_json(wait) for wait in view.waits],
        "failed_at": None if view.failed_at is None else _place_json(view.failed_at),
        "variables": view.variables,
        "unreadable": view.unreadable,
    }


def _flow_wait_json(wait: FlowWait) -> Json:
    return {
        **_place_json(wait.place),
        "sentence": wait.sentence,
        "since": time_json(wait.since),
        "frames": [{**_place_json(frame.place), "variables": frame.variables} for frame in wait.frames],
    }


def _place_json(place: FlowPlace) -> Json:
    return {"line": place.line, "column": place.column, "function": place.function}


def flow_json(flow: FlowInfo) -> Json:
    return {
        "type": flow.type,
        "version": flow.version,
        "description": flow.description,
        "registered_at": time_json(flow.registered_at),
        "by": flow.by,
        "is_newest": flow.is_newest,
    }


def plan_json(progress: PlanProgress | None) -> Json | None:
    """Return the steps of a pipeline with their states, or None for a run of another kind."""
    if progress is None:
        return None
    return {
        "cursor": None if progress.cursor is None else progress.cursor.name,
        "steps": [{"name": step.name, "state": step.state} for step in progress.steps],
    }


def _value_json(text: str) -> Any:
    """Return a value that a run has published, or None if it cannot be read."""
    return None if json_flaw(text) is not None else json.loads(text)


def audit_json(fact: AuditInfo) -> Json:
    return {"event": fact.event, "at": time_json(fact.at), "by": fact.by, "data": dict(fact.data)}


def error_json(error: ErrorRecord | None) -> Json | None:
    if error is None:
        return None
    return {
        "type": error.type,
        "message": error.message,
        "attempts": error.attempts,
        "traceback": error.traceback,
        "cause": error_json(error.cause),
    }


def worker_json(worker: WorkerInfo) -> Json:
    return {
        "id": worker.id,
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "types": list(worker.types),
        "concurrency": worker.concurrency,
        "started_at": time_json(worker.started_at),
        "heartbeat_at": time_json(worker.heartbeat_at),
        "is_alive": worker.is_alive,
        "held": worker.held,
    }


def schedule_json(schedule: ScheduleInfo) -> Json:
    return {
        "name": schedule.name,
        "type": schedule.type,
        "payload": schedule.payload,
        "cron": schedule.cron,
        "every_seconds": None if schedule.every is None else schedule.every.total_seconds(),
        "zone": schedule.zone,
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
        "jitter_seconds": schedule.jitter.total_seconds(),
        "priority": schedule.priority,
        "tags": dict(schedule.tags),
        "is_declared": schedule.is_declared,
        "is_paused": schedule.is_paused,
        "created_at": time_json(schedule.created_at),
        "updated_at": time_json(schedule.updated_at),
        "next_at": time_json(schedule.next_at),
        "last_slot": time_json(schedule.last_slot),
        "last_run_id": schedule.last_run_id,
        "skipped": schedule.skipped,
        "last_skipped_slot": time_json(schedule.last_skipped_slot),
        "unreadable": schedule.unreadable,
    }


def setting_json(setting: Setting[Any], origin: SettingOrigin) -> Json:
    value = None if origin.value is None else setting.kind.shown(origin.value)
    return {"setting": setting.key, "value": value, "origin": origin.place}


def topic_json(topic: TopicInfo) -> Json:
    return {
        "name": topic.name,
        "mode": topic.mode,
        "retention_seconds": topic.retention.total_seconds(),
        "max_pending": topic.max_pending,
    }


def type_json(type: TypeInfo) -> Json:
    return {
        "name": type.name,
        "runtime": type.runtime,
        "description": type.description,
        "enabled": type.enabled,
        "concurrency": type.concurrency,
        "per_key": type.per_key,
        "rate": None if type.rate is None else {"count": type.rate[0], "seconds": type.rate[1].total_seconds()},
        "retention_seconds": None if type.retention is None else type.retention.total_seconds(),
        "last_worker": type.last_worker,
        "last_seen_at": time_json(type.last_seen_at),
        "counts": {state.value: count for state, count in type.counts.items()},
        "parked": type.parked,
        "plan": list(type.plan),
    }


def letter_json(letter: DeadLetterInfo) -> Json:
    return {
        "number": letter.number,
        "id": letter.id,
        "topic": letter.topic,
        "run_id": letter.run_id,
        "name": letter.name,
        "payload": letter.payload,
        "at": time_json(letter.at),
        "reason": letter.reason,
        "unreadable": letter.unreadable,
    }


def pruned_json(pruned: Pruned) -> Json:
    return {
        "runs": pruned.runs,
        "events": pruned.events,
        "dead_letters": pruned.dead_letters,
        "taken": pruned.taken,
        "receipts": pruned.receipts,
        "replies": pruned.replies,
        "flows": pruned.flows,
        "has_more": pruned.has_more,
    }


def finding_json(finding: Finding) -> Json:
    return {"level": finding.level, "subject": finding.subject, "text": finding.text}


def check_json(found: RunCheck) -> Json:
    return {
        "id": found.id,
        "type": found.type,
        "state": found.state.value,
        "key": found.key,
        "fit": found.fit.value,
        "recorded": found.recorded,
        "requested": found.requested,
        "hints": list(found.hints),
        "summary": found.summary,
        "report": found.report,
    }


def outcome_json(info: RunInfo) -> Json:
    """Return the outcome of a run, or its state if it has not ended."""
    return {
        "id": info.id,
        "state": state_json(info.state),
        "result": info.result,
        "error": error_json(info.error),
    }


def message_json(message: MessageInfo) -> dict[str, Any]:
    return {
        "id": message.id,
        "name": message.name,
        "payload": message.payload,
        "sent_at": time_json(message.sent_at),
        **({} if message.unreadable is None else {"unreadable": message.unreadable}),
    }


def state_json(state: RunState | None) -> str | None:
    return None if state is None else state.value


def time_json(when: datetime | None) -> str | None:
    if when is None:
        return None
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
