"""Types: change the rules of types, record what the workers offer, and keep the definitions of flows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from holdfast.core import flow_definitions
from holdfast.core.clock import Micros
from holdfast.core.flow_definitions import FlowDefinition, RegisteredFlow
from holdfast.core.model import TypeChange, TypeOffer, TypeRule
from holdfast.stores.operations import limits
from holdfast.stores.operations.unit_of_work import UnitOfWork


def change(unit: UnitOfWork, changes: Sequence[TypeChange], now: Micros) -> None:
    """Change the rules of types. If limits change, they are applied again to the runs that hold or wait for slots."""
    for one in changes:
        before = unit.types.get(one.name) or TypeRule(name=one.name)
        after = one.applied_to(before)
        unit.types.put(after)
        if before.limits != after.limits:
            limits.apply(unit, after, now)
        if after.is_enabled and not before.is_enabled:
            unit.news.ready.add(one.name)


def offer(unit: UnitOfWork, worker: str, offers: Sequence[TypeOffer], now: Micros) -> None:
    """Record the types that a worker offers. The settings that a person has made for a type stay.

    Raises before it writes if one of the types is a flow and is offered as code.
    """
    check_no_flow_is_code(unit, worker, offers)
    for one in offers:
        known = unit.types.get(one.name) or TypeRule(name=one.name)
        unit.types.put(known.offered(one, worker, now))


# Flows: kept until no run needs them


def register_flow(unit: UnitOfWork, definition: FlowDefinition, by: str, now: Micros) -> RegisteredFlow:
    """Register a version of a flow, unless it is the newest one already. Raises before it writes."""
    flow_definitions.check_registrable(definition, unit.types.get(definition.type))
    known = unit.flows.of(definition.type)
    added = flow_definitions.registered(definition, known, by, now)
    if added is None:
        return RegisteredFlow(definition=known[-1].without_texts(), is_new=False)
    if (first := flow_definitions.same_version(added.version, known)) is not None:
        texts = unit.flows.whole(first)
        added = replace(added, source=texts.source, program=texts.program, instruction_set=texts.instruction_set)
    _put_flow(unit, added)
    unit.news.ready.add(added.type)  # workers that do not know the type yet ask for it
    return RegisteredFlow(definition=added.without_texts(), is_new=True)


def check_no_flow_is_code(unit: UnitOfWork, worker: str, offers: Iterable[TypeOffer]) -> None:
    """Refuse the offer of code for a type that is a flow."""
    for offer in offers:
        if offer.runtime != flow_definitions.FLOW_RUNTIME:
            newest = next(reversed(unit.flows.of(offer.name)), None)
            flow_definitions.check_offerable(offer.name, offer.runtime, worker, newest)


def check_restorable_flows(unit: UnitOfWork, definitions: Sequence[FlowDefinition]) -> None:
    """Refuse definitions from another store that do not fit what is here."""
    for one in definitions:
        flow_definitions.check_registrable(one, unit.types.get(one.type))
        same = flow_definitions.same_version(one.version, unit.flows.of(one.type))
        flow_definitions.check_restorable_flow(one, None if same is None else unit.flows.whole(same))


def restore_flows(unit: UnitOfWork, definitions: Sequence[FlowDefinition], now: Micros) -> int:
    """Add definitions from another store at their own times. Return the number of those that were not here."""
    count = 0
    for one in definitions:
        if all(one.registered_at != known.registered_at for known in unit.flows.of(one.type)):
            _put_flow(unit, replace(one, used_at=now))
            count += 1
    return count


def keep_flow_for_fork(unit: UnitOfWork, type: str, version: str | None, now: Micros) -> None:
    """Keep the version of a run that is forked. The fork is younger than the version that it executes."""
    same = [one for one in unit.flows.of(type) if one.version == version]
    if same:
        unit.flows.put(replace(same[-1], used_at=max(now, same[-1].used_at)))


def prune_flows(unit: UnitOfWork, limit: int, retention: Micros, now: Micros) -> int:
    """Remove definitions that no run needs, at most `limit`. Return how many."""
    count = 0
    for type in unit.flows.types():
        old = flow_definitions.removable(unit.flows.of(type), unit.flows.oldest_run(type), retention, now)
        for one in old[: limit - count]:
            unit.flows.remove(one)
            count += 1
    return count


def _put_flow(unit: UnitOfWork, definition: FlowDefinition) -> None:
    unit.flows.put(definition)
    rule = unit.types.get(definition.type)
    after = flow_definitions.flow_rule(rule, definition)
    if after != rule:
        unit.types.put(after)
