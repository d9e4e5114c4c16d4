"""Flows: register programs that are text in the store, and read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import msgspec

from holdfast.core.commands import RegisterFlow
from holdfast.core.errors import InvalidRequest
from holdfast.core.flow_definitions import FlowDefinition
from holdfast.core.intent import check_type
from holdfast.core.questions import PAGE_LIMIT, ListFlows
from holdfast.engine.async_list import AsyncList
from holdfast.engine.flaws import record
from holdfast.engine.flow_snapshot import flow_registrations
from holdfast.engine.session import SessionPart
from holdfast.flows.compiler import compile_flow

LONG_TEXT_CHARACTERS = 10_000
"""Length from which a text is compiled in a thread."""
VERSION_SHOWN = 12
"""Number of characters of a version that people see."""


class FlowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered version of a flow. `hf.flows.list` leaves out its `source`; `hf.flows.get` has it."""

    type: str
    """The type under which runs start."""
    version: str
    """The SHA-256 of the program, without comments and formatting."""
    description: str
    """The first line of the program's docstring."""
    registered_at: datetime
    """When it was registered, by the clock of the store."""
    by: str
    """The person or program that registered it."""
    is_newest: bool
    """True if new runs of the type execute this version."""
    source: str = ""
    """The text of the program."""


class RegisteredFlowInfo(FlowInfo, frozen=True, kw_only=True):
    """The result of a registration. `is_new` is False if the version was the newest one already."""

    is_new: bool
    """True if the registration changed something."""


class Flows(SessionPart):
    """`hf.flows`: register, list and read flows, which are workflows whose program is text in the store."""

    async def register(self, text_or_path: str | Path, *, type: str, by: str = "") -> RegisteredFlowInfo:
        """Register a flow under a type: its text, or the path of a file. New runs of the type execute it.

        Runs that exist keep their version. Registering the newest version again changes nothing. Raises `FlowRefused`
        with all mistakes if the text is not a flow, and `InvalidRequest` if the type is code.
        """
        check_type(type)
        self._refuse_code(type)
        source = source_of(text_or_path)
        # A short text takes a few milliseconds. A long one, which may be hostile, leaves the event loop to others.
        is_long = len(source) > LONG_TEXT_CHARACTERS
        program = await asyncio.to_thread(compile_flow, source) if is_long else compile_flow(source)
        definition = FlowDefinition(
            type=type,
            version=program.version,
            source=source,
            program=program.encode(),
            instruction_set=program.instruction_set,
            description=program.description,
        )
        store = await self._session.opened_store()
        answer = await store.apply(RegisterFlow(definition=definition, by=by))
        return record(RegisteredFlowInfo, answer.definition, is_newest=True, source=source, is_new=answer.is_new)

    def _refuse_code(self, type: str) -> None:
        known = self._session.registry.get(type)
        if known is not None:
            place = getattr(known.function, "__code__", None)
            where = f" ({place.co_filename}:{place.co_firstlineno})" if place is not None else ""
            raise InvalidRequest(
                f"type {type!r} is code here: {known.function.__qualname__}{where}; "
                "register the flow under another type"
            )

    def list(self, type: str | None = None) -> AsyncList[FlowInfo]:
        """List the registered versions of all flows, or of a type such as `access.*`, by type and then by time."""

        async def infos() -> AsyncIterator[FlowInfo]:
            held: FlowDefinition | None = None
            async for one in self._registrations(ListFlows(type=type, limit=PAGE_LIMIT)):
                if held is not None:
                    yield info_of(held, is_newest=held.type != one.type)
                held = one
            if held is not None:
                yield info_of(held, is_newest=True)

        return AsyncList(infos())

    async def get(self, type: str, version: str | None = None) -> FlowInfo:
        """Return a flow with its source: its newest version, or the one that begins with `version`.

        Raises `InvalidRequest` if there is none, or if several versions begin like that.
        """
        check_type(type)
        known = [one async for one in self._registrations(ListFlows(type=type, limit=PAGE_LIMIT))]
        if not known:
            raise InvalidRequest(
                f"there is no flow of the type {type!r}; hf.flows.list() and `holdfast flows ls` list them"
            )
        wanted = {one.version for one in known if one.version.startswith(version or "")}
        if version is None:
            wanted = {known[-1].version}
        if len(wanted) != 1:
            versions = ", ".join(dict.fromkeys(one.version[:VERSION_SHOWN] for one in known))
            what, begin = (f"{len(wanted)} versions", "begin") if wanted else ("no version", "begins")
            raise InvalidRequest(f"{what} of the flow {type!r} {begin} with {version!r}; it has {versions}")
        store = await self._session.opened_store()
        (found, *_) = await store.catalog(ListFlows(type=type, version=wanted.pop(), with_texts=True, limit=1))
        return info_of(found, is_newest=found.version == known[-1].version)

    async def _registrations(self, question: ListFlows) -> AsyncIterator[FlowDefinition]:
        store = await self._session.opened_store()
        async for one in flow_registrations(store, question):
            yield one


def info_of(definition: FlowDefinition, *, is_newest: bool) -> FlowInfo:
    """Return a definition as users see it."""
    return record(FlowInfo, definition, is_newest=is_newest)


def source_of(text_or_path: str | Path) -> str:
    """Return the text of a flow. A single line that ends in `.py` or `.flow` is a path."""
    if not isinstance(text_or_path, (str, Path)):
        raise InvalidRequest(f"{text_or_path!r:.80}: expected the text of a flow, or the path of its file")
    if isinstance(text_or_path, str) and ("\n" in text_or_path or not text_or_path.endswith((".py", ".flow"))):
        return text_or_path
    try:
        return Path(text_or_path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"the flow {str(text_or_path)!r} cannot be read: {error}") from error
