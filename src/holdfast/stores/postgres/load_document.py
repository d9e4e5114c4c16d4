"""A load request as the JSON document that the server function `load` takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from holdfast.stores.postgres.topics import bucket, classid
from holdfast.stores.working.load_request import LoadRequest


def document(request: LoadRequest, schema: str) -> str:
    """Return a load request as JSON. Empty parts are left out and cost nothing."""
    pending = Counter(topic for topic, _, _ in request.missed)
    topics = request.emitted | request.awaited
    wanted: dict[str, Any] = {
        "buckets": _buckets(request, schema),
        "runs": sorted(request.runs),
        "keys": sorted(request.keys),
        "endings": sorted(request.endings),
        "renewals": sorted(request.renewals),
        "emitted": [{"name": topic, "count": request.waiting[topic] + 8} for topic in sorted(request.emitted)],
        "groups": [{"name": name, "count": count} for name, count in request.groups.items()],
        "locations": [{"run_id": run_id, "location": location} for run_id, location in request.locations],
        "scopes": [{"run_id": run_id, "scope": scope} for run_id, scope in request.scopes],
        "histories": sorted(request.histories),
        "waits": sorted(request.waits),
        "inboxes": [{"run_id": run_id, "seen": seen} for run_id, seen in request.inboxes.items()],
        "consumed": [{"run_id": run_id, "number": number} for run_id, number in request.consumed],
        "messages": [{"run_id": run_id, "key": key, "id": id} for run_id, key, id in request.messages],
        "audits": sorted(request.audits),
        "events": [{"topic": topic, "id": id} for topic, id in request.events],
        "missed": [{"topic": topic, "run_id": run_id, "after": after} for topic, run_id, after in request.missed],
        "topics": [{"name": topic, "count": pending[topic] + 1} for topic in topics],
        "letters": sorted(request.letters),
        "new_events": request.new_events,
        "types": sorted(request.types),
        "limits": sorted(request.limits),
        "lifted": sorted(request.lifted),
        "flows": [{"type": type, "has_texts": type in request.flow_texts} for type in sorted(request.flows)],
        "is_ruling": request.is_ruling,
        "due": list(request.due),
    }
    return msgspec.json.encode({name: part for name, part in wanted.items() if part}).decode()


def _buckets(request: LoadRequest, schema: str) -> list[dict[str, Any]]:
    """Return the locks of the topics. A lock that two topics share is exclusive if either topic needs that."""
    locks = {bucket(topic): False for topic in request.awaited} | {bucket(topic): True for topic in request.emitted}
    family = classid(schema)
    return [{"class": family, "bucket": at, "is_exclusive": is_exclusive} for at, is_exclusive in locks.items()]
