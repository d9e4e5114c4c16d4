"""The snapshot of a flow as the engine reads it: the registered program, the state of the run, and its machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.clock import Micros
from holdfast.core.errors import Unreadable
from holdfast.core.flow_definitions import FlowDefinition, definition_at
from holdfast.core.model import Entry, Run
from holdfast.core.ports import Reader
from holdfast.core.questions import PAGE_LIMIT, ListFlows
from holdfast.flows.machine import Machine
from holdfast.flows.operations import OPEN
from holdfast.flows.program import Program
from holdfast.flows.requests import CallChild, MapChildren
from holdfast.flows.run_state import FlowState, decode_flow_state


class LoadedSnapshot(NamedTuple):
    """A snapshot that was read: what it stores, and the machine that continues from it."""

    state: FlowState
    machine: Machine

    def encoded(self) -> str:
        """Return the text of the snapshot with the machine as it is now."""
        return replace(self.state, machine=msgspec.Raw(self.machine.snapshot().encode())).encode()


async def definition_of(store: Reader, run: Run, version: str | None) -> FlowDefinition:
    """Return the definition that a run executes: its version once it has begun, else the one for its creation.

    Raises `Unreadable` if the store does not have it.
    """
    if version is None:
        question = ListFlows(type=run.type, limit=PAGE_LIMIT)
        found = definition_at(run.created_at, [one async for one in flow_registrations(store, question)])
        if found is None:
            raise Unreadable(f"the store has no definition of the flow {run.type!r}")
        version = found.version
    known = await store.catalog(ListFlows(type=run.type, version=version, with_texts=True, limit=1))
    if not known:
        raise Unreadable(f"the store has no version {version[:12]} of the flow {run.type!r}")
    return known[0]


async def flow_registrations(store: Reader, question: ListFlows) -> AsyncIterator[FlowDefinition]:
    """Yield the registrations that a question asks for, page by page."""
    while True:
        page = await store.catalog(question)
        for one in page:
            yield one
        if len(page) < question.limit:
            return
        question = replace(question, after=(page[-1].type, page[-1].registered_at))


def loaded(definition: FlowDefinition, snapshot: Entry) -> LoadedSnapshot:
    """Return a snapshot with its machine. Raises `Unreadable` if the snapshot or the program cannot be read."""
    program = Program.decode(definition.program)
    state = decode_flow_state(snapshot.result or "")
    return LoadedSnapshot(state, Machine.resume(program, definition.source, bytes(state.machine).decode()))


def move_deadlines(found: LoadedSnapshot, snapshot: Entry) -> None:
    """Set the deadlines of a machine to those that count for the run: a rewind moves them."""
    put_off = 0
    if snapshot.retry_at is not None:
        put_off = max(0, snapshot.retry_at - (snapshot.finished_at or 0))
    for handle, asked in found.state.asked.items():
        operation = found.machine.handles.table.get(handle)
        request = None if operation is None else operation.request
        if operation is None or operation.state != OPEN or asked.deadline is None:
            continue
        if request is not None and not isinstance(request, CallChild | MapChildren):
            deadline: Micros = asked.deadline + (0 if asked.is_fixed else put_off)
            operation.request = replace(request, deadline=deadline)
