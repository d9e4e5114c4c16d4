"""Controls: requests that change existing runs, for one run by its id or for a selection of runs.

A selection changes each run by its own control, one after the other. If a run cannot be changed, the report has the
reason, and the other runs are changed all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import Parameter, Signature
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack

import msgspec
from msgspec.structs import replace

from holdfast.core import revision
from holdfast.core.audit import REQUEST
from holdfast.core.clock import Micros, moment
from holdfast.core.codec import encode_any
from holdfast.core.commands import Cancel, Control, Delete, DropMessage, Fork, Recover, Rewind
from holdfast.core.errors import InvalidRequest, KeyConflict, RunBusy, RunNotFound, StoreUnavailable
from holdfast.core.flow_revision import Revision
from holdfast.core.intent import check_actor, check_id, check_reason, check_string
from holdfast.core.model import Entry, Run, new_id
from holdfast.core.news import Signal
from holdfast.core.ports import Store
from holdfast.core.questions import Details, EndsOf
from holdfast.core.states import RunState
from holdfast.core.verbs import VERBS, Verb
from holdfast.engine.flow_view import ForkPoint, fork_point
from holdfast.engine.info import nearest
from holdfast.engine.lists import Filter, checked_filter, query_of, run_pages
from holdfast.engine.private_loop import Facade, PrivateLoop, blocking
from holdfast.engine.session import Session, SessionPart


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
            await self._send_signals(request)
        return bool(is_changed)

    async def _send_signals(self, request: Control[Any]) -> None:
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
            self._send(f"run.{fact.event}", run_id, run.type, fact.at, run.options.trace)
            if isinstance(request, Fork):
                self._send("run.started", request.new_run_id, run.type, fact.at, None)

    def _send(self, name: str, run_id: str, type: str, at: Micros, trace: str | None) -> None:
        state, signals = _STATES.get(name), self._session.signals
        if signals.wants(name):
            signals.send(Signal(name=name, at=moment(at), run_id=run_id, type=type, state=state, trace=trace))


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


Progress = Callable[[int, int], object]
"""Callback after each run. It gets the number of runs done and the number of all runs."""


class SelectedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one run of a selection. A run that does not exist has only an `id`."""

    id: str
    """The id of the run."""
    type: str | None = None
    """Its type."""
    state: RunState | None = None
    """Its state before the change."""
    created_at: datetime | None = None
    """The time of its start."""
    why: str = ""
    """The reason why it was skipped. Empty if it was changed, or would be in a dry run."""
    is_refused: bool = False
    """True if the change was not allowed, for example because a worker holds the run.

    False if there was nothing to change.
    """


class SelectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for all runs of a selection."""

    changed: int
    """Number of runs that were changed, or would be in a dry run."""
    skipped: int
    """Number of runs that were not changed."""
    reasons: dict[str, int]
    """Number of skipped runs for each reason."""
    runs: Sequence[SelectedRun]
    """Every run of the selection, with its own reason."""
    is_dry_run: bool = False
    """True if this is the report of a dry run, which changed nothing."""


class How(TypedDict, total=False):
    """The keywords that every verb of a selection takes."""

    by: str
    dry_run: bool
    progress: Progress | None


A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class _Plain(Protocol[A_co]):
    def __call__(self, **how: Unpack[How]) -> A_co: ...


class _WithReason(Protocol[A_co]):
    def __call__(self, reason: str = "", **how: Unpack[How]) -> A_co: ...


class _WithForce(Protocol[A_co]):
    def __call__(self, *, force: bool = False, **how: Unpack[How]) -> A_co: ...


class _WithReasonAndForce(Protocol[A_co]):
    def __call__(self, reason: str = "", *, force: bool = False, **how: Unpack[How]) -> A_co: ...


class _WithForceAndFail(Protocol[A_co]):
    def __call__(self, *, force: bool = False, fail: bool = False, **how: Unpack[How]) -> A_co: ...


class _WithLocationAndForce(Protocol[A_co]):
    def __call__(self, location: str, *, force: bool = False, **how: Unpack[How]) -> A_co: ...


class BulkVerbs(Generic[A]):
    """The types of the verbs of a selection. The verbs themselves are made from `core.verbs`."""

    cancel: _WithReasonAndForce[A]
    pause: _WithReason[A]
    resume: _Plain[A]
    wake: _Plain[A]
    evict: _Plain[A]
    recover: _WithForceAndFail[A]
    rewind: _WithLocationAndForce[A]
    delete: _WithForce[A]


class Selection(BulkVerbs[Coroutine[Any, Any, SelectionReport]]):
    """The runs that `hf.runs(…)` selected, to be changed together.

    Each run is changed by itself. A run that cannot be changed is skipped, and the report says why. Every verb takes:

    - `by`: the name of who asks, which the audit of each run keeps
    - `dry_run=True`: change nothing, and report what would be changed
    - `progress`: a function that is called after each run with the number of runs done and the number of all
    """

    def __init__(
        self, session: Session, filter: Filter, *, ids: Iterable[str] | None = None, everything: bool = False
    ) -> None:
        filter = checked_filter(filter)
        self._filter = filter
        self._is_narrow = any(map(bool, filter.values()))
        if ids is not None and (isinstance(ids, str) or not isinstance(ids, Iterable)):
            raise InvalidRequest(f"hf.runs(ids={ids!r:.80}): expected a list of ids")
        self._ids = None if ids is None else list(dict.fromkeys(check_string(id, "ids") for id in ids))
        if self._ids is not None and self._is_narrow:
            raise InvalidRequest("hf.runs() takes ids=[…] or filters, not both")
        if filter.get("deleted"):
            raise InvalidRequest("hf.runs(deleted=True): deleted runs cannot be changed; hf.list lists them")
        self._session = session
        self._controls = Controls(session)
        self._everything = everything

    async def _change(
        self, request: Control[Any], *, dry_run: bool = False, progress: Progress | None = None
    ) -> SelectionReport:
        """Apply a request to each run, or report what it would change."""
        name, verb = request.verb, VERBS[request.verb]
        if not (self._is_narrow or self._everything or dry_run or self._ids is not None):
            raise InvalidRequest(
                f"hf.runs().{name}() would {name} every run in the store; pass a filter, such as state= or type=, "
                "or confirm with hf.runs(everything=True)"
            )
        await self._session.open()
        planned = [_planned(verb, request, details, now) async for details, now in self._chosen()]
        done: list[SelectedRun] = []
        try:
            for run in planned:
                done.append(run if run.why else await self._do(verb, request, run, dry_run=dry_run))
                if progress is not None:
                    progress(len(done), len(planned))
        except BaseException as error:
            error.add_note(
                f"{len(done):,} of {len(planned):,} runs were done before this error; repeat {name}() for the others"
            )
            raise
        reasons = Counter(run.why.replace(run.id, "…").removeprefix("run …").lstrip(": ") for run in done if run.why)
        skipped = reasons.total()
        return SelectionReport(
            changed=len(done) - skipped, skipped=skipped, reasons=dict(reasons), runs=done, is_dry_run=dry_run
        )

    async def _chosen(self) -> AsyncIterator[tuple[Details | str, Micros]]:
        """Yield the runs, newest first, each with the store's time. For a run that does not exist, yield its id."""
        store = self._session.store
        if self._ids is not None:
            now = await store.now()
            for run_id in self._ids:
                yield await store.get(run_id) or run_id, now
            return
        async for page in run_pages(store, await query_of(store, self._filter)):
            now = await store.now()
            for details in page:
                yield details, now

    async def _do(self, verb: Verb, request: Control[Any], selected: SelectedRun, *, dry_run: bool) -> SelectedRun:
        """Change a run that is expected to change. In a dry run, check for errors instead."""
        request = replace(request, run_id=selected.id, id=new_id())
        try:
            if dry_run:
                await self._rehearse(request)
                return selected
            if await self._controls.apply(request):
                return selected
        except (InvalidRequest, KeyConflict, RunBusy, RunNotFound) as refusal:
            why = str(refusal)
            return replace(selected, why=why if selected.id in why else f"run {selected.id}: {why}", is_refused=True)
        # The run changed after it was read, by another program or by an earlier run of this selection.
        details = await self._session.store.get(selected.id)
        unchanged = verb.why_unchanged(details.run.state) if details is not None else "was deleted"
        return replace(selected, why=f"run {selected.id} {unchanged}")

    async def _rehearse(self, request: Control[Any]) -> None:
        """Raise the errors of a request that depend on more than the run itself."""
        store = self._session.store
        if isinstance(request, Rewind):
            await planned_rewind(store, request.run_id, request.location)
        elif isinstance(request, Recover):
            details = await store.get(request.run_id)
            if details is None or not details.run.state.is_end:
                return  # only an ended run can have lost its key
            key = revision.lost_key(details.run, await store.audit(request.run_id))
            if key is not None and (holder := await store.get(key=key)) is not None:
                raise revision.key_conflict(details.run, key, holder.run.id)


class SyncSelection(BulkVerbs[SelectionReport], Facade):
    """The runs that `hf.sync.runs(…)` selected, to be changed together, for code that blocks."""

    def __init__(self, runs: Selection, loop: PrivateLoop) -> None:
        super().__init__("hf.runs(…)", runs, loop)


def _planned(verb: Verb, request: Control[Any], details: Details | str, now: Micros) -> SelectedRun:
    """Return the expected result for a run as it was read. It keeps only the fields that the report needs."""
    if isinstance(details, str):
        return SelectedRun(id=details, why=f"there is no run {details}", is_refused=True)
    run = details.run
    selected = SelectedRun(id=run.id, type=run.type, state=run.state, created_at=nearest(run.created_at))
    if details.unreadable is not None:
        return selected  # no result can be predicted, so let the store decide; a delete, for example, may work
    try:
        is_changing = _is_changing(verb, request, details, now)
    except RunBusy as refusal:
        return replace(selected, why=str(refusal), is_refused=True)
    return selected if is_changing else replace(selected, why=f"run {run.id} {verb.why_unchanged(run.state)}")


def _is_changing(verb: Verb, request: Control[Any], details: Details, now: Micros) -> bool:
    """Return True if a request would change a run as it was read. Raises `RunBusy` if the run must not change."""
    run = details.run
    match request:
        case Cancel():
            return not run.state.is_end and (request.force or run.rollback is None)
        case Recover():
            return run.state is RunState.BLOCKED if request.fail else run.state in revision.RECOVERABLE
        case Rewind() | Delete():
            revision.check_free(run, is_forced=request.force)
            return True
        case _:
            return verb.applied(run, details.waits, now) is not None


# Making the verbs


def _made(verb: Verb) -> Callable[..., Coroutine[Any, Any, SelectionReport]]:
    """Return the method of a selection for a verb."""
    own = [_parameter(verb.command, name) for name in verb.parameters]
    how = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in (
            ("by", "", "str"),
            ("dry_run", False, "bool"),
            ("progress", None, "Progress | None"),
        )
    ]
    signature = Signature(
        [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *own, *how], return_annotation="SelectionReport"
    )

    async def method(self: Selection, /, *args: Any, **kwargs: Any) -> SelectionReport:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        how = {name: given.pop(name) for name in ("dry_run", "progress")}
        return await self._change(Controls.request(verb.name, "", **given), **how)

    method.__name__, method.__qualname__, method.__doc__ = verb.name, f"Selection.{verb.name}", verb.about
    method.__signature__ = signature  # type: ignore[attr-defined]  # functions may have one
    return method


def _parameter(command: type[Control[Any]], name: str) -> Parameter:
    """Return a parameter of a verb. Texts may be positional, flags are keywords."""
    field = next(field for field in msgspec.structs.fields(command) if field.name == name)
    is_text = field.type is str
    return Parameter(
        name,
        Parameter.POSITIONAL_OR_KEYWORD if is_text else Parameter.KEYWORD_ONLY,
        default=Parameter.empty if field.required else field.default,
        annotation="str" if is_text else "bool",
    )


for _verb in VERBS.values():
    setattr(Selection, _verb.name, _made(_verb))
    setattr(SyncSelection, _verb.name, blocking(getattr(Selection, _verb.name)))


async def planned_rewind(store: Store, run_id: str, location: str) -> tuple[Revision, Sequence[Entry]]:
    """Return the revision that a rewind to a location would make, and the entries that it would drop.

    Raises `InvalidRequest` if nothing is recorded at the location.
    """
    run, entries, children = await read_run(store, run_id)
    planned = revision.rewind(run, entries, location, children, await store.now())
    return planned, [entry for entry in entries if entry.location in planned.dropped]


async def read_run(store: Store, run_id: str) -> tuple[Run, Sequence[Entry], dict[str, Run]]:
    """Return a run, its history, and its open children by their ids."""
    details = await store.get(run_id)
    if details is None:
        raise RunNotFound(f"there is no run {run_id}")
    entries = await store.history(run_id)
    found = [await store.get(child_id) for child_id in revision.open_children(entries)]
    return details.run, entries, {child.run.id: child.run for child in found if child is not None}
