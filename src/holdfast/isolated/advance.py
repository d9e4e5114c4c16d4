"""Advance: moves one run in a namespace of its own as far as it goes, and says when to come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Unpack

import msgspec
from msgspec.structs import replace

from holdfast.app import Holdfast, session_of
from holdfast.core import rules
from holdfast.core.checkpoint import LeaseRequest
from holdfast.core.clock import SECOND, Clock, Micros, SystemClock, moment
from holdfast.core.errors import ErrorRecord, InvalidRequest, UnknownWorkflow
from holdfast.core.intent import EveryRunOptions, check_id, check_names, described, intent_fields
from holdfast.core.model import Intent, Run
from holdfast.core.states import RunState
from holdfast.isolated.driver import CheckedDriver, NamespaceDriver
from holdfast.isolated.host import NAME, NamespaceHost
from holdfast.isolated.loading import Loader
from holdfast.isolated.mail import OutboxItem
from holdfast.isolated.namespace import Namespace
from holdfast.runner.definition import Definition
from holdfast.runner.registry import Registry
from holdfast.worker.claimer import PYTHON

LEASE: Micros = 30 * SECOND
"""The alarm while a run executes: if the host dies, the run is advanced again after this time at the latest."""

_NEED_A_STORE = {
    "key": "keys are unique among the runs of a store",
    "reuse": "keys are unique among the runs of a store",
    "priority": "a priority orders the runs that wait for workers",
    "retention": "a store prunes ended runs; delete the namespace instead",
    **dict.fromkeys(("limit", "limits", "rate", "map_limit"), "limits count the runs of a store"),
    **dict.fromkeys(("schedule", "cron", "every"), "schedules start runs in a store; call advance when a run is due"),
    **dict.fromkeys(("queue", "mode"), "a queue gives each event to one of many runs; give it to one namespace"),
}
"""Options that are refused, with the reason."""


class IsolatedOptions(EveryRunOptions, total=False):
    """The options of a run in a namespace of its own: keywords of the first `advance`.

    Undelivered messages leave through the outbox. The namespace has no audit, so `by` is only kept for the host.
    """

    delay: float | timedelta
    """Seconds or a timedelta to wait before the run begins."""
    ready_at: datetime | None
    """The moment before which the run does not begin, instead of `delay`. UTC unless it has a zone."""
    parent_id: str | None
    """The id of a run that the host lists this run under. It has no other effect."""


class Advanced(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run, as `advance` returns it."""

    state: RunState
    """Its state. An end state is final."""
    result: Any = None
    """The return value of the workflow, if the run has succeeded."""
    error: ErrorRecord | None = None
    """The reason why it failed, was cancelled, rolls back or is blocked."""
    alarm_at: datetime | None = None
    """The time of its alarm: advance it then, or as soon as something is written into its namespace."""
    outbox: tuple[OutboxItem, ...] = ()
    """Its requests to other runs, oldest first, that the host has not cleared with `isolated.delivered`."""


async def advance(
    driver: NamespaceDriver,
    hf: Holdfast,
    run_id: str,
    *,
    type: str | None = None,
    payload: Mapping[str, Any] | None = None,
    start: OutboxItem | None = None,
    clock: Clock | None = None,
    **options: Unpack[IsolatedOptions],
) -> Advanced:
    """Advance a run until it stands still: until it has ended, or can only wait.

    `hf` supplies the registered workflows; its store is not opened. The first call creates the run, from `type`,
    `payload` and `options`, or from the `start` item of its parent's outbox. Later calls do not need them. Never
    advance one namespace twice at the same time; `hf` refuses the second call on the same driver object.

    Raises `DriverFailed` if the driver fails. Raises `InvalidRequest`, `SchemaOutOfDate` or `Unreadable`, and writes
    nothing, if the namespace has another run, another layout, or something that is not from holdfast.
    """
    check_id(run_id)
    if type is not None and not isinstance(type, str):
        raise InvalidRequest(f"advance(type={type!r:.80}): expected the name of the type, such as 'shop.checkout'")
    checked = CheckedDriver(driver)
    with _alone(driver, session_of(hf).advancing, run_id):
        request = partial(_intent, session_of(hf).registry, run_id, type, payload, start=start, options=options)
        return await _advanced(checked, hf, run_id, clock or SystemClock(), type=type, request=request)


@contextmanager
def _alone(driver: NamespaceDriver, busy: set[int], run_id: str) -> Iterator[None]:
    """Refuse a second advance by this Holdfast on the same driver object. In all other cases, only the host can."""
    if id(driver) in busy:
        raise InvalidRequest(
            f"run {run_id} is being advanced already, and a namespace has one writer; await the other advance first"
        )
    busy.add(id(driver))
    try:
        yield
    finally:
        busy.discard(id(driver))


async def _advanced(
    checked: CheckedDriver,
    hf: Holdfast,
    run_id: str,
    clock: Clock,
    *,
    type: str | None,
    request: Callable[[], Intent],
) -> Advanced:
    """Advance a run. `request` is how it is created, if it does not exist."""
    registry = session_of(hf).registry
    loader = Loader(checked, run_id)
    found = await loader.outline()
    has_mail = found.run is not None and loader.has_mail and not found.run.state.is_end
    stands_still = found.run is not None and not has_mail and not _is_due(found.run, clock.now())
    namespace = Namespace(run_id, found if stands_still else await loader.rest())
    if not namespace.exists:
        _refuse_schedules(registry, type)
        intent = request()
        if type is not None:  # a child with a wrong payload is created and fails, so that its parent gets its end
            _definition(registry, type).signature.decode(intent.payload, f"payload of {type!r}")
        namespace.create(intent, clock.now())
    if type is not None and type != namespace.run.type:
        raise InvalidRequest(f"run {run_id} in this namespace has the type {namespace.run.type!r}, not {type!r}")
    definition = _definition(registry, namespace.run.type)
    if not stands_still:
        await _move(namespace, checked, hf, clock)
    run = namespace.run
    alarm_at = None if run.ready_at is None else moment(run.ready_at)
    # After the last batch: a crash between the two leaves an alarm that is too early.
    await (checked.clear_alarm() if alarm_at is None else checked.set_alarm(alarm_at))
    result = None if run.result is None else definition.result.decode(run.result, "result of the run")
    return Advanced(
        state=run.state,
        result=result,
        error=run.error,
        alarm_at=alarm_at,
        outbox=tuple(namespace.outbox.values()),
    )


async def _move(namespace: Namespace, driver: CheckedDriver, hf: Holdfast, clock: Clock) -> None:
    """Accept mail, then claim and drive the run as long as it is due."""
    session = session_of(hf)
    if not namespace.run.state.is_end:
        namespace.accept(clock.now())
    is_alarmed = False
    while _is_due(namespace.run, now := clock.now()):
        if not is_alarmed:
            # Before the lease is written: a host that dies after that has an alarm to come back to.
            await driver.set_alarm(moment(now + LEASE))
            is_alarmed = True
        claim_id = f"{NAME}-{namespace.run.token + 1}"
        lease = namespace.claim(LeaseRequest(worker=NAME, claim_id=claim_id, lease=LEASE, python=PYTHON), now)
        host = NamespaceHost(namespace, driver, clock, session.signals)
        await host.drive(lease, session.registry.definition(lease.run.type))
    await namespace.commit(driver)


def _is_due(run: Run, now: Micros) -> bool:
    """True if a run can go on. A held run can: its host has died, because no other process writes it."""
    return not run.state.is_end and (run.is_held or rules.is_due(run, now))


def _definition(registry: Registry, type: str) -> Definition:
    try:
        return registry.definition(type)
    except UnknownWorkflow as error:
        raise UnknownWorkflow(f"{error}. A flow cannot run in a namespace, because its text is in a store") from None


def _refuse_schedules(registry: Registry, type: str | None) -> None:
    """Refuse to create a run of a type that its code declares with a schedule. A child may have such a type."""
    if names := [one.name for one in registry.schedules() if one.type == type]:
        raise InvalidRequest(
            f"advance(type={type!r}): this type is declared with the schedule {names[0]!r}, which starts runs in a "
            "store; without a store it would never fire. Let your host call advance at these times, for a type "
            "without @hf.schedule"
        )


def _intent(
    registry: Registry,
    run_id: str,
    type: str | None,
    payload: Mapping[str, Any] | None,
    *,
    start: OutboxItem | None,
    options: IsolatedOptions,
) -> Intent:
    """Return the request to create the run."""
    if start is not None:
        if start.intent is None or start.intent.id != run_id:
            raise InvalidRequest(f"advance(start={start.id!r}): expected an item of kind start, for run {run_id}")
        # A key is unique in a store, and a namespace has no other runs. The host knows the key from the item.
        return replace(start.intent, key=None)
    if type is None:
        raise InvalidRequest(f"there is no run {run_id} in this namespace yet; pass its type and payload")
    _check_options(type, options)
    type, text, _ = described(type, (payload,))
    return Intent(id=run_id, type=type, payload=text, **intent_fields(options, registry.get(type)))


def _check_options(type: str, options: IsolatedOptions) -> None:
    for name in options:
        if (reason := _NEED_A_STORE.get(name)) is not None:
            raise InvalidRequest(f"advance({name}=…): {reason}; a namespace has one run, so this needs a store")
    check_names(options, IsolatedOptions, type, of="advance")
