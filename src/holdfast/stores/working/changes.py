"""Changes: the difference between a working set when it was loaded and after an operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.stores.memory.state import Record
from holdfast.stores.working.working_set import WorkingRecord, WorkingSet

encode = msgspec.json.encode

Changes = dict[str, list[Any]]


def with_fields(value: msgspec.Struct, **fields: str | int | msgspec.Struct | None) -> msgspec.Raw:
    """Encode a value as JSON with additional fields. The value must have at least one field of its own."""
    return msgspec.Raw(encode(fields)[:-1] + b"," + encode(value)[1:])


def changes_of(working: WorkingSet) -> Changes:
    """Return everything that differs from what was loaded. Parts without a change are left out."""
    changes: Changes = defaultdict(list)
    for record in working.records.values():
        if isinstance(record, WorkingRecord):
            _changes_of_record(changes, record)
        else:
            _new_record(changes, record)
    changes["events"], changes["forgotten"] = working.changed_events()
    changes["letters"], changes["purged"] = working.changed_letters()
    changes["lifted"] = sorted(working.lifted)
    changes["types"] = [with_fields(rule, rate_window=window) for rule, window in working.changed_types()]
    changes["flows"] = working.changed_flows()
    changes["facts"] = working.facts
    return {name: change for name, change in changes.items() if change}


def _new_record(changes: Changes, record: Record) -> None:
    run_id = record.run.id
    changes["made"].append(record.run)
    changes["entries"] += [with_fields(one, run_id=run_id, token=record.run.token) for one in record.entries.values()]
    changes["arrived"] += [with_fields(arrival, run_id=run_id) for arrival in record.inbox.values()]
    if record.waits:
        changes["waits"].append({"run_id": run_id, "waits": record.waits})
    _changes_of_gains(changes, record, {})


def _changes_of_record(changes: Changes, record: WorkingRecord) -> None:
    run, before = record.run, record.origin
    if run is not before.run and run != before.run:
        changes["runs"].append(replace(run, payload="", tags={}))  # these never change
        changes["freed"] += [{"name": s, "run_id": run.id} for s in before.run.slots if s not in run.slots]
        changes["taken"] += [{"name": s, "run_id": run.id} for s in run.slots if s not in before.run.slots]
    if record.waits is not before.waits and record.waits != before.waits:
        changes["waits"].append({"run_id": run.id, "waits": record.waits})
    _changes_of_history(changes, record)
    _changes_of_inbox(changes, record)
    _changes_of_gains(changes, record, before.receipts)


def _changes_of_gains(changes: Changes, record: Record, receipts: Mapping[str, Micros]) -> None:
    """Add the values, receipts and replies of a run. `receipts` are those that it had before."""
    run = record.run
    changes["values"] += [{"run_id": run.id, "name": name, "value": value} for name, value in record.values.items()]
    changes["receipts"] += [
        {"run_id": run.id, "message_id": id, "at": at} for id, at in record.receipts.items() if receipts.get(id) != at
    ]
    changes["replies"] += [
        {"run_id": run.id, "message_id": id, "payload": payload, "at": at}
        for id, (payload, at) in record.replies.items()
    ]


def _changes_of_history(changes: Changes, record: WorkingRecord) -> None:
    run_id, token, before = record.run.id, record.run.token, record.origin.entries
    if record.is_history_cleared:
        changes["cleared"].append(run_id)
        before = {}
    if record.forgotten_before:
        changes["faded"].append({"run_id": run_id, "before": record.forgotten_before})
    changes["dropped"] += [{"run_id": run_id, "location": at} for at in before if at not in record.entries]
    changes["entries"] += [
        with_fields(entry, run_id=run_id, token=token)
        for location, entry in record.entries.items()
        if before.get(location) is not entry
    ]


def _changes_of_inbox(changes: Changes, record: WorkingRecord) -> None:
    run_id, before = record.run.id, record.origin.inbox
    if record.is_inbox_emptied:
        changes["emptied"].append(run_id)
        before = {}
    for number in before:
        if record.inbox.get(number) is not before[number]:
            changes["consumed"].append({"run_id": run_id, "number": number})
    changes["arrived"] += [
        with_fields(arrival, run_id=run_id)
        for number, arrival in record.inbox.items()
        if before.get(number) is not arrival
    ]
