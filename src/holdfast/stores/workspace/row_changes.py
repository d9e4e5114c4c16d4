"""Changes: the difference between rows as they were loaded and after an operation."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.stores.memory.state import Record
from holdfast.stores.workspace.rows import EventRow, RowWorkspace

encode = msgspec.json.encode

Changes = dict[str, list[Any]]
"""The rows to write, by part. Parts without a change are left out."""


def with_fields(value: msgspec.Struct, **fields: str | int | msgspec.Struct | None) -> msgspec.Raw:
    """Encode a value as JSON with additional fields. The value must have at least one field of its own."""
    return msgspec.Raw(encode(fields)[:-1] + b"," + encode(value)[1:])


def changes_of(rows: RowWorkspace) -> Changes:
    changes: Changes = defaultdict(list)
    for run_id, record in rows.records.items():
        origin = rows.origins_of_runs.get(run_id)
        if origin is None:
            changes["made"].append(record.run)
            origin = Record(record.run)
        else:
            _add_run(changes, origin, record)
        if record.waits is not origin.waits and record.waits != origin.waits:
            changes["waits"].append({"run_id": run_id, "waits": record.waits})
        _add_history(changes, rows, origin, record)
        _add_inbox(changes, rows, origin, record)
    _add_events(changes, rows)
    letters = {letter.number for letter in rows.loaded.letters}
    changes["letters"] = [letter for number, letter in rows.letters.items() if number not in letters]
    changes["purged"] = [number for number in letters if number not in rows.letters]
    changes["lifted"] = sorted(rows.lifted)
    types = {rule.name: (rule, window) for rule, window in rows.loaded.types}
    ruled = [(rule, rows.windows.get(name)) for name, rule in rows.types.items()]
    changes["types"] = [with_fields(one[0], rate_window=one[1]) for one in ruled if types.get(one[0].name) != one]
    flows = {(flow.type, flow.registered_at): flow for flow in rows.loaded.flows}
    known = (flow for registrations in rows.flows.values() for flow in registrations)
    changes["flows"] = [flow for flow in known if flows.get((flow.type, flow.registered_at)) != flow]
    changes["facts"] = rows.facts
    return {name: change for name, change in changes.items() if change}


def _add_run(changes: Changes, origin: Record, record: Record) -> None:
    run, before = record.run, origin.run
    if run is not before and run != before:
        changes["runs"].append(replace(run, payload="", tags={}))  # these never change
        changes["freed"] += [{"name": slot, "run_id": run.id} for slot in before.slots if slot not in run.slots]
        changes["taken"] += [{"name": slot, "run_id": run.id} for slot in run.slots if slot not in before.slots]


def _add_history(changes: Changes, rows: RowWorkspace, origin: Record, record: Record) -> None:
    run_id, token, before = record.run.id, record.run.token, origin.entries
    if run_id in rows.cleared:
        changes["cleared"].append(run_id)
        before = {}
    if run_id in rows.forgotten:
        changes["faded"].append({"run_id": run_id, "before": rows.forgotten[run_id]})
    if record.entries or before:
        changes["dropped"] += [{"run_id": run_id, "location": at} for at in before if at not in record.entries]
        changes["entries"] += [
            with_fields(entry, run_id=run_id, token=token)
            for location, entry in record.entries.items()
            if before.get(location) is not entry
        ]


def _add_inbox(changes: Changes, rows: RowWorkspace, origin: Record, record: Record) -> None:
    """Add the changes of an inbox, and the values, receipts and replies that the run has gained."""
    run_id, before = record.run.id, origin.inbox
    if run_id in rows.emptied:
        changes["emptied"].append(run_id)
        before = {}
    changes["consumed"] += [
        {"run_id": run_id, "number": number} for number in before if record.inbox.get(number) is not before[number]
    ]
    changes["arrived"] += [
        with_fields(arrival, run_id=run_id)
        for number, arrival in record.inbox.items()
        if before.get(number) is not arrival
    ]
    changes["values"] += [{"run_id": run_id, "name": name, "value": value} for name, value in record.values.items()]
    changes["receipts"] += [
        {"run_id": run_id, "message_id": id, "at": at}
        for id, at in record.receipts.items()
        if origin.receipts.get(id) != at
    ]
    changes["replies"] += [
        {"run_id": run_id, "message_id": id, "payload": payload, "at": at}
        for id, (payload, at) in record.replies.items()
    ]


def _add_events(changes: Changes, rows: RowWorkspace) -> None:
    before = {row.number: row for row in rows.loaded.events}
    after = {published.number: EventRow.of(published) for kept in rows.events.values() for published in kept}
    changes["events"] = [row for number, row in after.items() if before.get(number) != row]
    changes["forgotten"] = [number for number in before if number not in after]
