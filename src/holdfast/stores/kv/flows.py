"""Flows: one field for each registration in the partition of its type, and a partition for the texts of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.questions import ListFlows
from holdfast.stores.kv import names
from holdfast.stores.kv.driver import AllFields, Driver, Fields, Range
from holdfast.stores.kv.reads import members_of, partitions
from holdfast.stores.kv.workspace import Workspace

SOURCE = "source"
PROGRAM = "program"

encode = msgspec.json.encode
_decode = msgspec.json.Decoder(FlowDefinition).decode


def flows_of(fields: Mapping[str, bytes]) -> list[FlowDefinition]:
    """Return the registrations of a type in order of time, without texts."""
    return [_decode(fields[name]) for name in sorted(fields)]


def _texts_read(definition: FlowDefinition) -> Fields:
    return Fields(names.flow_texts(definition.type, definition.registered_at), (SOURCE, PROGRAM))


def _with_texts(definition: FlowDefinition, fields: Mapping[str, bytes]) -> FlowDefinition:
    return replace(definition, source=fields[SOURCE].decode(), program=fields[PROGRAM].decode())


class KvFlows:
    """Registrations of flows, by type and time."""

    def __init__(self, space: Workspace) -> None:
        self._space = space

    def of(self, type: str) -> Sequence[FlowDefinition]:
        return flows_of(self._space.whole(names.flows(type)))

    def whole(self, definition: FlowDefinition) -> FlowDefinition:
        partition = names.flow_texts(definition.type, definition.registered_at)
        fields = {name: self._space.field(partition, name) or b"" for name in (SOURCE, PROGRAM)}
        return _with_texts(definition, fields)

    def put(self, definition: FlowDefinition) -> None:
        field = names.time_text(definition.registered_at)
        is_known = self._space.field(names.flows(definition.type), field) is not None
        self._space.put(names.flows(definition.type), {field: encode(definition.without_texts())})
        if not is_known:
            texts = {SOURCE: definition.source.encode(), PROGRAM: definition.program.encode()}
            self._space.put(names.flow_texts(definition.type, definition.registered_at), texts)
            self._space.add(names.FLOWS, definition.type)

    def remove(self, definition: FlowDefinition) -> None:
        self._space.drop(names.flows(definition.type), [names.time_text(definition.registered_at)])
        self._space.clear(names.flow_texts(definition.type, definition.registered_at))

    def types(self) -> Sequence[str]:
        known = self._space.range(Range(names.FLOWS))
        self._space.expect(AllFields(names.flows(type)) for type in known)
        return [type for type in known if len(self.of(type)) > 1]

    def oldest_run(self, type: str) -> Micros | None:
        states = [name for name in self._space.range(Range(names.STATES)) if name.partition(":")[2] == type]
        reads = [Range(f"by:{name}", limit=1) for name in states]
        self._space.expect(reads)
        first = [member for read in reads for member in self._space.range(read)]
        return min((int(member[: names.TIME_DIGITS], 16) for member in first), default=None)


async def list_flows(driver: Driver, query: ListFlows) -> list[FlowDefinition]:
    types = await _types(driver, query)
    found = await partitions(driver, [AllFields(names.flows(type)) for type in types])
    known = [one for partition in found for one in flows_of(partition.fields)]
    listed = [one for one in known if query.admits(one)][: query.limit]
    if not query.with_texts:
        return listed
    texts = await partitions(driver, [_texts_read(one) for one in listed])
    # A definition may be pruned between the two reads.
    return [_with_texts(one, some.fields) for one, some in zip(listed, texts, strict=True) if some.fields]


async def _types(driver: Driver, query: ListFlows) -> list[str]:
    """Return the types that a query may concern. One exact type needs no list."""
    if query.type is not None and not query.type.endswith(".*"):
        return [query.type]
    return await members_of(driver, names.FLOWS)
