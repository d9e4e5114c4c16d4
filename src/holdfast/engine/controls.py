"""Controls: requests of a person or a program that change an existing run, given its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.audit import REQUEST
from holdfast.core.clock import Micros, moment
from holdfast.core.codec import encode_any
from holdfast.core.commands import Control, DropMessage, Fork, Recover, Rewind
from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.core.ids import new_id
from holdfast.core.intent import check_actor, check_id, check_reason, check_string
from holdfast.core.questions import EndsOf
from holdfast.core.signals import Signal
from holdfast.core.states import RunState
from holdfast.core.verbs import VERBS
from holdfast.engine.flow_patch import ForkPoint, fork_point
from holdfast.engine.session import SessionPart


class Controls(SessionPart):
    """The controls of runs in the store of a session. Each writes to the run's audit and returns True if it changed it.

    `by` is the name of the user or service that asked. The audit keeps it.
    """

    @staticmethod
    def request(verb: str, run_id: str, *, by: str = "", **parameters: Any) -> Control[Any]:
        """Return the command of a verb (`core.verbs`), if its parameters are valid."""
        command = VERBS[verb].command
        checked = {name: _checked(command, name, value) for name, value in parameters.items()}
        return command(run_id=check_string(run_id, "run_id"), id=new_id(), by=check_actor(by), **checked)

    async def fork(
        self,
        run_id: str,
        location: str,
        *,
        patch: Mapping[str, Any] | None = None,
        force: bool = False,
        id: str | None = None,
        by: str = "",
    ) -> tuple[str, bool]:
        """Start a new run with the history of this one before a location. `patch` replaces results, by location.

        The patch of a flow sets variables, by name. Returns the id of the new run, and False if a run with this id
        existed already.
        """
        made = new_id() if id is None else check_id(id)
        if patch is not None and not isinstance(patch, Mapping):
            raise InvalidRequest(f"patch={patch!r}: expected a dict of results by location")
        patched = {at: encode_any(value, f"patch of {at!r}") for at, value in (patch or {}).items()}
        check_string(location, "location")
        point = ForkPoint(location, patched)
        if patched:
            point = await fork_point(await self._session.opened_store(), run_id, point)
        request = Fork(
            run_id=run_id,
            id=new_id(),
            new_run_id=made,
            location=point.location,
            patch=dict(point.patch),
            force=force,
            by=check_actor(by),
        )
        return made, await self.apply(request)

    async def drop_message(self, run_id: str, message_id: str, *, by: str = "") -> bool:
        """Remove a message that a run has not received yet. False if there is no such message."""
        check_string(message_id, "id")
        request = DropMessage(run_id=run_id, id=new_id(), message_id=message_id, by=check_actor(by))
        return await self.apply(request)

    async def apply(self, request: Control[Any]) -> bool:
        """Apply a request. Returns True if it changed the run."""
        await self._session.open()
        is_begun = False
        try:
            while (is_changed := await self._session.store.apply(request)) is None:
                is_begun = True  # None: one transaction of children is reopened, and more children are left
        finally:
            if isinstance(request, (Rewind, Recover)):
                # Even after an error: the answer may be lost although the run was reopened.
                self._session.results.forget(request.run_id)
        is_changed = is_changed or is_begun
        if is_changed and self._session.signals.is_used:
            await self._tell(request)
        return bool(is_changed)

    async def _tell(self, request: Control[Any]) -> None:
        """Send the signals of a request. They follow from the run's audit, even if the run has changed since."""
        run_id = request.run_id
        try:
            details = await self._session.store.get(run_id)
            # `get` does not find a deleted run, but its end is still there.
            ends = () if details is not None else await self._session.store.changes(EndsOf(run_ids=[run_id]))
            run = details.run if details is not None else next(iter(ends), None)
            facts = [fact for fact in await self._session.store.audit(run_id) if fact.data.get(REQUEST) == request.id]
        except StoreUnavailable:
            return  # the request itself is done
        if run is None:
            return
        for fact in facts:
            self._give(f"run.{fact.event}", run_id, run.type, fact.at, run.options.trace)
            if isinstance(request, Fork):
                self._give("run.started", request.new_run_id, run.type, fact.at, None)

    def _give(self, name: str, run_id: str, type: str, at: Micros, trace: str | None) -> None:
        state, signals = _STATES.get(name), self._session.signals
        if signals.wants(name):
            signals.give(Signal(name=name, at=moment(at), run_id=run_id, type=type, state=state, trace=trace))


_STATES = {
    "run.started": RunState.PENDING,
    "run.paused": RunState.PAUSED,
    "run.rolling_back": RunState.ROLLING_BACK,
    "run.cancelled": RunState.CANCELLED,
}


def _checked(command: type[Control[Any]], name: str, value: Any) -> Any:
    """Return a parameter of a command, if it is valid. A text with a default is for readers of the audit."""
    field = next(field for field in msgspec.structs.fields(command) if field.name == name)
    if field.type is not str:
        return value
    return check_string(value, name) if field.required else check_reason(value)
