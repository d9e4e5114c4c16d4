"""The options of a start, declared once for every producer of runs.

A `TypedDict` says which options a producer has, with their types and descriptions. `OPTIONS` says how each is checked
and where it is kept. Starts, children, schedules, flows, isolated runs, the command line and the view `intent` of
Postgres are derived from the two, or compared with them by a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict, get_args

from holdfast.core.clock import instant
from holdfast.core.errors import InvalidRequest
from holdfast.core.intent import (
    check_actor,
    check_choice,
    check_delay,
    check_id,
    check_key,
    check_length,
    check_priority,
    check_tags,
    is_count,
    refuse_options,
)
from holdfast.core.model import DEFAULT_OPTIONS, OnClose, Reuse, RunOptions, Undelivered
from holdfast.core.startable import Call

ATTEMPTS_LIMIT = 1_000_000


class EveryRunOptions(TypedDict, total=False):
    """The options that every producer of runs has."""

    tags: Mapping[str, str] | None
    """Names and values to search for, and to limit by: `{"tenant": "acme"}`."""
    max_run: float | timedelta | None
    """Seconds or a timedelta after which a worker cancels the run, counted from when it may begin. Default: no limit.

    A paused run, and a run without a worker for its type, is cancelled when a worker has it again.
    """
    max_suspend: float | timedelta | None
    """Seconds or a timedelta after which one suspension of the run cancels it. Default: no limit."""
    undelivered: Undelivered
    """Policy for messages that the run never received: `discard` (default), or `dead_letter`."""
    max_attempts: int | None
    """Number of attempts of a task in total, instead of the number in its `Retry`.

    A start refuses it for a workflow that it knows, and other workflows ignore it.
    """
    by: str
    """The name of the user or service that asked for the run. Its audit shows it with `created`."""


class StoredRunOptions(EveryRunOptions, total=False):
    """The options that every producer of runs in a store has."""

    priority: int
    """0 to 255, lower first. Default: 100."""
    retention: float | timedelta | None
    """Seconds or a timedelta for which the run is kept after its end.

    Default: the retention of its type, else that of the worker.
    """


class StartOptions(StoredRunOptions, total=False):
    """The options of a run: keywords of `hf.start`, `hf.start_many`, `hf.start_in` and `hf.execute`."""

    key: str | None
    """Makes the start safe to repeat. A second start with the same key and payload returns the first run.

    With another type or payload it raises `KeyConflict`.
    """
    reuse: Reuse
    """Rule for a new run with the key of an old one: `never` (default), `after_failure` or `after_end`.

    A cancelled run counts as failed.
    """
    delay: float | timedelta
    """Seconds or a timedelta to wait before the run begins."""
    ready_at: datetime | None
    """The moment before which the run does not begin, instead of `delay`. UTC unless it has a zone."""
    id: str | None
    """An id of your own for the run. Default: a new UUID."""
    parent_id: str | None
    """The id of a run that this run is listed under: `hf.list(parent_id=…)`. The parent need not exist.

    Neither run waits for the other, or is cancelled with it. Workers claim the run in the rank of children.
    """


class ChildOptions(StoredRunOptions, total=False):
    """The options of a child run: keywords of `ctx.start`, `ctx.call` and `ctx.map`. The parent's are not inherited."""

    name: str
    """The name of the child in the parent's history. Default: its type."""
    delay: float | timedelta
    """Seconds or a timedelta to wait before the child begins."""
    on_close: OnClose
    """Close policy of the child when its parent ends: `cancel`, or `abandon`, which lets it continue.

    The default of `ctx.call` and `ctx.map` is `cancel`, that of `ctx.start` is `abandon`.
    """


class StartOption(NamedTuple):
    """How an option is checked, what the command line says about it, and the field of the intent if it differs."""

    check: Callable[[Any], Any]
    help: str
    field: str = ""
    may_be_none: bool = True


def _length(name: str, help: str) -> StartOption:
    return StartOption(lambda length: check_length(length, name), help)


def _choice(name: str, choices: object, help: str) -> StartOption:
    return StartOption(lambda value: check_choice(name, value, get_args(choices)), help, may_be_none=False)


def _check_attempts(count: object) -> int:
    if not is_count(count) or count > ATTEMPTS_LIMIT:
        raise InvalidRequest(f"max_attempts={count!r}: expected a whole number from 1 to {ATTEMPTS_LIMIT:,}")
    return count


OPTIONS = {
    "key": StartOption(check_key, "Idempotency key: the same key and payload return the same run."),
    "reuse": _choice("reuse", Reuse, "When the key of an ended run may start a new one.  [default: never]"),
    "priority": StartOption(check_priority, "0 to 255, lower first.  [default: 100]", may_be_none=False),
    "delay": StartOption(check_delay, "Start after this time, such as 30s or 2h.", may_be_none=False),
    "ready_at": StartOption(
        lambda when: instant(when, "ready_at"),
        "Start at this moment, such as 2030-01-31T09:00 (local time) or …Z.",
        field="start_at",
    ),
    "tags": StartOption(check_tags, "A tag for searches; may be repeated."),
    "id": StartOption(check_id, "An id for the run.  [default: a new one]"),
    "parent_id": StartOption(check_id, "List the run under this run. Neither waits for the other."),
    "on_close": _choice("on_close", OnClose, "What happens to a child when its parent ends."),
    "retention": _length("retention", "Keep the run for this long after its end, such as 7d."),
    "max_run": _length("max_run", "Cancel the run after this time, counted from its start time."),
    "max_suspend": _length("max_suspend", "Cancel the run if one suspension takes longer than this time."),
    "undelivered": _choice(
        "undelivered", Undelivered, "What happens to messages that the run never received.  [default: discard]"
    ),
    "max_attempts": StartOption(_check_attempts, "Number of attempts of a task, instead of the number in its code."),
    "by": StartOption(
        check_actor, "Who asked for the run, for its audit.  [default: cli: and your login]", may_be_none=False
    ),
}
"""The options by name. A producer may have more of its own, which are not fields of an intent, such as `name`."""


def check_names(given: Mapping[str, Any], producer: type, workflow: object, *, of: str) -> None:
    """Refuse options that a producer does not have. `producer` is its `TypedDict`."""
    if given.keys() - producer.__annotations__.keys():
        target = workflow.target if isinstance(workflow, Call) else workflow
        if producer is ChildOptions:
            refuse_parent(given)
        refuse_options(given, producer.__annotations__, target, of=of)


def refuse_parent(given: Mapping[str, Any]) -> None:
    """Refuse `parent_id` among the options of a child."""
    if "parent_id" in given:
        raise InvalidRequest(
            f"parent_id={given['parent_id']!r:.80}: the parent of a child is the run that starts it; leave it out"
        )


def intent_fields(given: Mapping[str, Any], workflow: object = None) -> dict[str, Any]:
    """Return the fields of an intent that options set. Raises `InvalidRequest` if one is not valid.

    `workflow` is the decorated function or the bound call, if it is known here, for options that only tasks have.
    """
    fields: dict[str, Any] = {}
    lasting: dict[str, Any] = {}
    for name, value in given.items():
        option = OPTIONS.get(name)
        if option is None or (value is None and option.may_be_none):
            continue
        checked = option.check(value)
        if name not in _LASTING:
            fields[option.field or name] = checked
        elif checked != getattr(DEFAULT_OPTIONS, name):
            lasting[name] = checked
    if lasting:
        if "max_attempts" in lasting:
            _refuse_attempts(workflow)
        fields["options"] = RunOptions(**lasting)
    if "start_at" in fields and fields.get("delay"):
        raise InvalidRequest("delay= and ready_at= both set the start of the run; pass only one of them")
    return fields


_LASTING = frozenset(RunOptions.__struct_fields__)


def _refuse_attempts(workflow: object) -> None:
    """Refuse `max_attempts` for a workflow. A worker ignores it for one that was not known at the start."""
    target = workflow.target if isinstance(workflow, Call) else workflow
    if getattr(target, "is_task", None) is False:
        raise InvalidRequest(
            f"max_attempts=…: {getattr(target, 'type', target)!r} is a workflow, and only tasks have it; "
            "set the attempts of its steps with retry=Retry(max_attempts=…)"
        )
