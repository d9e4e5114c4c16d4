"""Controls: what a person or a program can do to an existing run, given its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.audit import REQUEST
from holdfast.core.clock import Micros, moment
from holdfast.core.codec import decode_any, encode_any
from holdfast.core.commands import Cancel, Delete, DropMessage, Fork, Pause, Recover, Resume, Rewind, RunControl, Wake
from holdfast.core.errors import InvalidRequest, StoreUnavailable
from holdfast.core.ids import new_id
from holdfast.core.intent import check_id, check_string
from holdfast.core.questions import EndsOf
from holdfast.core.signals import Signal
from holdfast.core.states import RunState
from holdfast.engine.session import Session

ACTOR_LIMIT = 200


class Controls:
    """The controls of runs in the store of a session. Each is written to the run's audit; True means a change.

    `by` names who asked for it, such as a user or a service; the audit keeps it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def cancel(self, run_id: str, reason: str = "", *, force: bool = False, by: str = "") -> bool:
        """End a run as cancelled, after it has undone what it did unless `force`. False if it had ended already."""
        request = Cancel(run_id=run_id, id=new_id(), reason=check_reason(reason), force=force, by=check_actor(by))
        return await self._control(request)

    async def pause(self, run_id: str, reason: str = "", *, by: str = "") -> bool:
        """Keep a run from going on until it is resumed. Steps that execute right now are not interrupted."""
        request = Pause(run_id=run_id, id=new_id(), reason=check_reason(reason), by=check_actor(by))
        return await self._control(request)

    async def resume(self, run_id: str, *, by: str = "") -> bool:
        """Let a paused run go on."""
        return await self._control(Resume(run_id=run_id, id=new_id(), by=check_actor(by)))

    async def wake(self, run_id: str, *, by: str = "") -> bool:
        """Have a run that waits, or is blocked and would be tried again, look now. It shortens no sleep."""
        return await self._control(Wake(run_id=run_id, id=new_id(), by=check_actor(by)))

    async def rewind(self, run_id: str, location: str, *, force: bool = False, by: str = "") -> bool:
        """Forget what a run did from a location on, and have it go on from there, also if it had ended.

        `RunBusy` while a worker holds it, unless `force`, which takes it away from that worker.
        """
        check_string(location, "location")
        request = Rewind(run_id=run_id, id=new_id(), location=location, force=force, by=check_actor(by))
        return await self._reopen(request)

    async def recover(self, run_id: str, *, force: bool = False, by: str = "") -> bool:
        """Give a run that failed, was cancelled or is blocked another chance at what it failed at. False for any other.

        Its children that failed, or were cancelled with it, are reopened first. `KeyConflict` if another run has its
        key by now. Repeating a call that raised continues it.
        """
        return await self._reopen(Recover(run_id=run_id, id=new_id(), force=force, by=check_actor(by)))

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
        """Make a new run with the history of this one before a location; `patch` gives other results by location.

        Returns its id, and whether it was made: there may be one of this id already.
        """
        made = new_id() if id is None else check_id(id)
        if patch is not None and not isinstance(patch, Mapping):
            raise InvalidRequest(f"patch={patch!r}: it is a dict of other results by their locations")
        patched = {at: encode_any(value, f"patch of {at!r}") for at, value in (patch or {}).items()}
        check_string(location, "location")
        request = Fork(
            run_id=run_id,
            id=new_id(),
            new_run_id=made,
            location=location,
            patch=patched,
            force=force,
            by=check_actor(by),
        )
        return made, await self._control(request)

    async def delete(self, run_id: str, *, force: bool = False, by: str = "") -> bool:
        """Take a run out of sight at once, and remove it a day later. One that lives is cancelled, nothing undone.

        `RunBusy` while a worker holds it, unless `force`, which takes it away from that worker. True, or `RunNotFound`.
        """
        return await self._control(Delete(run_id=run_id, id=new_id(), force=force, by=check_actor(by)))

    async def drop_message(self, run_id: str, message_id: str, *, by: str = "") -> bool:
        """Remove a message that a run has not received yet. False if there is no such message."""
        check_string(message_id, "id")
        request = DropMessage(run_id=run_id, id=new_id(), message_id=message_id, by=check_actor(by))
        return await self._control(request)

    async def _reopen(self, request: Rewind | Recover) -> bool:
        await self._session.open()
        try:
            return await self._control(request)
        finally:
            self._session.results.forget(request.run_id)  # whatever the answer: it may be lost, and the run reopened

    async def _control(self, request: RunControl) -> bool:
        check_string(request.run_id, "run_id")
        await self._session.open()
        is_begun = False
        while (is_changed := await self._session.store.apply(request)) is None:
            is_begun = True  # so many children were reopened as fit into one transaction, and there are more
        is_changed = is_changed or is_begun
        if is_changed and self._session.signals.is_used:
            await self._tell(request)
        return is_changed

    async def _tell(self, request: RunControl) -> None:
        """Give the signal of what a request changed, which the run's audit tells, whatever has happened since."""
        run_id = request.run_id
        try:
            details = await self._session.store.get(run_id)
            # One that was deleted is no longer seen, but it has ended.
            ends = () if details is not None else await self._session.store.changes(EndsOf(run_ids=[run_id]))
            run = details.run if details is not None else next(iter(ends), None)
            facts = [fact for fact in await self._session.store.audit(run_id) if fact.data.get(REQUEST) == request.id]
        except StoreUnavailable:
            return  # it is done all the same
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


def check_reason(reason: str) -> str:
    """Return a reason, if it is a text that every store can keep."""
    return _check_told("reason", reason)


def check_actor(by: str) -> str:
    """Return the name of an actor, if it is a text that every store can keep. Empty means that nobody is named."""
    actor = _check_told("by", by)
    if len(actor) > ACTOR_LIMIT:
        raise InvalidRequest(f"by= has {len(actor)} characters; the name of an actor has at most {ACTOR_LIMIT}")
    return actor


def _check_told(name: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidRequest(f"{name}={text!r}: it is a text, for those who read the run's audit")
    if "\0" in text:
        raise InvalidRequest(f"{name}= has a NUL in it, which no store keeps: {text[:80]!r}")
    kept: str = decode_any(encode_any(text, name))
    return kept
