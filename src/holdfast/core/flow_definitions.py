"""Flow definitions: the registered programs of flows, and which of them a run executes. Pure decisions.

A store keeps one row for each registration, in the order of `registered_at`. The text of a version never changes: a
version that is registered again keeps the program of its first registration, so that snapshots fit it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec.structs import replace

from holdfast.core.clock import DAY, Micros, moment
from holdfast.core.errors import InvalidRequest
from holdfast.core.model import TypeRule, Value

FLOW_RUNTIME = "flow"
"""The runtime of a type that is a flow, in its rule and in the offers of workers."""

USE_PATIENCE: Micros = DAY
"""Minimum time that a definition is kept after a later one, a fork or an import. An import brings its runs last."""


_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")


class FlowDefinition(Value, frozen=True, kw_only=True):
    """One registration of a flow: a version of the program of a type.

    `version` is the SHA-256 of the program in hexadecimal. `program` is the compiled program as JSON text. Lists
    without texts leave `source` and `program` empty. The store sets `registered_at`; it is later than that of every
    earlier registration of the type. `used_at` is the last time that a fork or an import used this definition.
    """

    type: str
    version: str
    source: str = ""
    program: str = ""
    instruction_set: int = 1
    description: str = ""
    registered_at: Micros = 0
    by: str = ""
    used_at: Micros = 0

    def without_texts(self) -> FlowDefinition:
        """Return the definition as lists without texts show it."""
        return replace(self, source="", program="")


class RegisteredFlow(Value, frozen=True, kw_only=True):
    """The answer to a registration: the newest definition of the type, without its texts. `is_new`: it was added."""

    definition: FlowDefinition
    is_new: bool


def definition_at(created_at: Micros, registrations: Iterable[FlowDefinition]) -> FlowDefinition | None:
    """Return the definition of a run that was created at an instant; None if its type has none.

    It is the newest one that was registered until then, or the first one if the run is older than all. Once a run has
    begun, its entry `~flow` names the version too. That one counts, because a fork keeps the version of its origin.
    """
    in_order = sorted(registrations, key=lambda one: one.registered_at)
    until = [one for one in in_order if one.registered_at <= created_at]
    return until[-1] if until else next(iter(in_order), None)


def registered(
    definition: FlowDefinition, known: Sequence[FlowDefinition], by: str, now: Micros
) -> FlowDefinition | None:
    """Return the registration to add; None if its version is the newest one already. `known` are in order."""
    if known and known[-1].version == definition.version:
        return None
    registered_at = max(now, known[-1].registered_at + 1) if known else now
    return replace(definition, registered_at=registered_at, by=by or definition.by, used_at=0)


def same_version(version: str, known: Iterable[FlowDefinition]) -> FlowDefinition | None:
    """Return the first registration of a version."""
    return next((one for one in known if one.version == version), None)


def check_registrable(definition: FlowDefinition, rule: TypeRule | None) -> None:
    """Refuse a flow of a type that a worker offers as code, and texts that no store can keep."""
    for text in (definition.source, definition.program):
        if _NOT_STORABLE.search(text) is not None:
            raise InvalidRequest(f"the text of the flow {definition.type!r} contains NUL or a surrogate; remove it")
    if rule is None or rule.seen_at is None or rule.runtime == FLOW_RUNTIME:
        return
    raise InvalidRequest(
        f"type {definition.type!r} is code: worker {rule.seen_by!r} offered it with the runtime {rule.runtime!r} at "
        f"{_date_of(rule.seen_at)}, so it cannot be registered as a flow; choose another type, or, if no worker offers "
        f"it any more, set its runtime to {FLOW_RUNTIME!r} first"
    )


def check_offerable(type: str, runtime: str, worker: str, newest: FlowDefinition | None) -> None:
    """Refuse the offer of code for a type that is a flow."""
    if newest is None or runtime == FLOW_RUNTIME:
        return
    by = f" by {newest.by!r}" if newest.by else ""
    raise InvalidRequest(
        f"type {type!r} is a flow: its version {newest.version[:12]} was registered{by} at "
        f"{_date_of(newest.registered_at)}, so worker {worker!r} cannot offer it as code (runtime {runtime!r}); rename "
        "one of them"
    )


def check_restorable_flow(definition: FlowDefinition, known: FlowDefinition | None) -> None:
    """Refuse to import a version that has another program here: snapshots of its runs would not fit."""
    if known is not None and known.program != definition.program:
        raise InvalidRequest(
            f"version {definition.version[:12]} of the flow {definition.type!r} was compiled differently here, and "
            "the imported runs would not fit; import the file into an empty store"
        )


def flow_rule(rule: TypeRule | None, definition: FlowDefinition) -> TypeRule:
    """Return the rule of a type after its registration as a flow. A description that is already set stays."""
    known = rule or TypeRule(name=definition.type)
    return replace(known, runtime=FLOW_RUNTIME, description=known.description or definition.description)


def removable(
    registrations: Sequence[FlowDefinition], oldest_run: Micros | None, retention: Micros, now: Micros
) -> list[FlowDefinition]:
    """Return the registrations of a type that no run needs, oldest first. `oldest_run` is when its first run began.

    A registration serves the runs that were created before the next one, and the forks that were made until `used_at`.
    So it is needed while a run exists that was created until the later of the two. Registrations are removed from the
    oldest on: a run that is older than all of them takes the first one.
    """
    until = now - max(retention, USE_PATIENCE)
    found: list[FlowDefinition] = []
    for one, following in pairwise(registrations):
        last_use = max(following.registered_at, one.used_at + 1)
        if last_use > until or (oldest_run is not None and oldest_run < last_use):
            break
        found.append(one)
    return found


def _date_of(at: Micros) -> str:
    return moment(at).isoformat(timespec="seconds").replace("+00:00", "Z")
