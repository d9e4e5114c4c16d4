"""Shrinking: find the smallest part of a failing plan that still fails in the same way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.programs.expectation import Undetermined
from tests.programs.flow_text import FlowProgram
from tests.programs.interpreter import Interpreter, Program
from tests.simulation.plan import Plan

PLAIN = {"workers": 1, "flushes": 1, "slowness": 0.0, "deafness": 0.0, "always_replay": False, "concurrency": 20}
"""The simplest value of each setting."""


def shrunk(plan: Plan, is_wrong: Callable[[Plan], bool], *, tries: int = 400) -> Plan:
    """Return the smallest failing plan found within this many tries."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(plan):
            if tries <= 0:
                return plan
            tries -= 1
            if is_wrong(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with fewer parts, the smallest first."""
    for name in ("acts", "blows", "faults", "deploys"):
        part = getattr(plan, name)
        size = len(part)
        while size:
            for start in range(0, len(part), size):
                yield msgspec.structs.replace(plan, **{name: part[:start] + part[start + size :]})
            size //= 2
    for name, value in PLAIN.items():
        if getattr(plan, name) != value:
            yield _with_fewer(plan) if name == "workers" else msgspec.structs.replace(plan, **{name: value})
    for name, cuts in (("programs", _cut), ("wild", _cut), ("flows", _cut_flow), ("wild_flows", _cut_flow)):
        grown = getattr(plan, name)
        for place, program in enumerate(grown):
            for cut in cuts(program):
                yield msgspec.structs.replace(plan, **{name: [*grown[:place], cut, *grown[place + 1 :]]})


def _with_fewer(plan: Plan) -> Plan:
    """Return the plan with one worker less; the faults of the last one move to the one before."""
    last = plan.workers - 2
    fewer: Plan = copy.deepcopy(plan)
    fewer.workers -= 1
    for blow in fewer.blows:
        blow.worker = min(blow.worker, last)
    for fault in fewer.faults:
        fault.worker = min(fault.worker, last)
    for deploy in fewer.deploys:
        deploy.worker = min(deploy.worker, last)
    return fewer


def _cut(program: Program) -> Iterator[Program]:
    """Yield programs without one of their operations, as long as their outcome is determined."""
    for path in _places(program):
        cut = copy.deepcopy(program)
        inside: Any = cut
        for step in path[:-1]:
            inside = inside[step]
        del inside[path[-1]]
        try:
            Interpreter().root(cut)
        except (Undetermined, LookupError, TypeError, ValueError):
            continue
        yield cut


def _cut_flow(program: FlowProgram) -> Iterator[FlowProgram]:
    """Yield flow programs without one of their parts or nodes."""
    for path in _flow_places(program):
        smaller = copy.deepcopy(program)
        inside: Any = smaller
        for step in path[:-1]:
            inside = inside[step]
        del inside[path[-1]]
        yield smaller


def _flow_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the removable parts: lists of nodes are lists of lists."""
    parts = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    if isinstance(value, list) and all(isinstance(each, list) for each in value):
        is_generations = path[-1:] == ("parts",)
        yield from ((*path, place) for place, _ in parts if len(parts) > 1 or not is_generations)
    for key, part in parts:
        if isinstance(part, (dict, list)):
            yield from _flow_places(part, (*path, key))


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the removable parts: operations of a sequence, branches, generations."""
    parts: list[tuple[Any, Any]] = []
    if isinstance(node, dict):
        parts = list(node.items())
        if "parts" not in node and len(node) > 1:
            yield from ((*path, key) for key in node)
    elif isinstance(node, list):
        parts = list(enumerate(node))
        is_sequence = len(path) > 1 and path[-1] in (1, "parts") and all(isinstance(each, list) for each in node)
        if is_sequence and (path[-1] == 1 or len(node) > 1):
            yield from ((*path, place) for place in range(len(node)))
    for key, part in parts:
        yield from _places(part, (*path, key))
