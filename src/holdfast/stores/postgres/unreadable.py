"""Rows that cannot be decoded: reads show the other fields, claims block the run, and operations skip it if they may.

Statements return rows as JSON, and the store decodes a whole answer at once. If that fails, this module decodes each
row by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.core import unreadable as core_unreadable
from holdfast.core.checkpoint import Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.errors import Unreadable
from holdfast.core.model import Arrival, Entry, Lease, Run, Wait
from holdfast.core.questions import Details
from holdfast.core.unreadable import joined, reason_of, salvaged
from holdfast.stores.postgres.json_parts import items, members
from holdfast.stores.postgres.scripts import Script
from holdfast.stores.postgres.sql import Calls
from holdfast.stores.working.working_set import Loaded

FAILURES = (msgspec.MsgspecError, RecursionError)
"""Errors that the decoder raises for a row that cannot be decoded."""

_T = TypeVar("_T")

_log = logging.getLogger("holdfast.store")


_decode_run = msgspec.json.Decoder(Run).decode
_decode_waits = msgspec.json.Decoder(tuple[Wait, ...]).decode
_decode_values = msgspec.json.Decoder(dict[str, str]).decode
_decode_lease = msgspec.json.Decoder(Lease).decode
_decode_leases = msgspec.json.Decoder(tuple[Lease, ...]).decode
_decode_ids = msgspec.json.Decoder(list[str]).decode
_decode_id = msgspec.json.Decoder(str).decode
_decode_verdict = msgspec.json.Decoder(Verdict).decode
_decode_loaded = msgspec.json.Decoder(Loaded).decode


# Reading


readable = partial(core_unreadable.readable, failures=FAILURES)


def details(text: str) -> Details:
    """Decode the JSON of `Details`, without the parts that cannot be decoded."""
    parts = members(text)
    run, why = _salvaged(parts["run"])
    reasons = [why]
    waits: tuple[Wait, ...] = ()
    values: dict[str, str] = {}
    try:
        waits = _decode_waits(parts["waits"])
    except FAILURES as error:
        reasons.append(f"waits: {reason_of(error)}")
    try:
        values = _decode_values(parts["values"])
    except FAILURES as error:
        reasons.append(f"values: {reason_of(error)}")
    return Details(run=run, waits=waits, values=values, unreadable=joined(reasons))


def run_of(text: str) -> Run:
    """Decode the JSON of a run, without the fields that cannot be decoded."""
    return _salvaged(text)[0]


def _salvaged(text: str) -> tuple[Run, str]:
    return salvaged({name: msgspec.Raw(value.encode()) for name, value in members(text).items()})


def verdicts(text: str) -> Verdicts:
    """Decode verdicts one by one. A run whose inbox cannot be decoded counts as lost, and the next claim blocks it."""
    parts = members(text)
    return Verdicts(verdicts=tuple(map(_verdict, items(parts["verdicts"]))), now=int(parts["now"]))


def _verdict(text: str) -> Verdict:
    try:
        return _decode_verdict(text)
    except FAILURES:
        return Verdict(run_id=_decode_id(members(text)["run_id"]), is_lost=True, is_held=False)


# Claiming


def blocking(
    calls: Calls, types: tuple[str, ...], count: int, at: Micros | None, script: Callable[[], Script[_T]]
) -> Script[_T]:
    """Run a script on due runs. If it meets a run that cannot be decoded, block all such runs and run it again."""
    try:
        return (yield from script())
    except (Unreadable, *FAILURES) as error:
        trouble = error
    due = _decode_ids((yield calls.due_ids, (msgspec.json.encode(types).decode(), count, at)))
    blocked = 0
    for run_id in due:
        if (why := _flaw((yield calls.lease, (run_id,)))) is not None:
            blocked += (yield calls.block_unreadable, (run_id, None, why, at)) == "true"
    if not blocked:
        raise trouble
    return (yield from script())


def _flaw(leases: str) -> str | None:
    """Return why a worker could not decode the lease of a run, or None if it could."""
    try:
        _decode_leases(leases)
    except FAILURES as error:
        return reason_of(error)
    return None


def read_leases(calls: Calls, worker: str, leases: Iterable[str], at: Micros | None) -> Script[list[Lease]]:
    """Decode claimed leases. Runs that cannot be decoded are blocked and left out."""
    read: list[Lease] = []
    for text in leases:
        try:
            read.append(_decode_lease(text))
        except FAILURES as error:
            run_id = _decode_id(members(members(text)["run"])["id"])
            yield calls.block_unreadable, (run_id, worker, reason_of(error), at)
    return read


# Deciding


def loaded(document: str, wanted: Collection[str], *, is_strict: bool) -> Loaded:
    """Decode a loaded document. A run that cannot be decoded is left out, so that an event reaches all other runs.

    Raises:
        Unreadable: The operation names such a run (it is in `wanted`), or `is_strict` is set.

    """
    try:
        return _decode_loaded(document)
    except FAILURES:
        parts = members(document)
    odd: dict[str, str] = {}
    read = {name: list(_readable_pairs(parts[name], kind, odd)) for name, kind in _PAIRS.items() if name in parts}
    runs = list(_readable_runs(parts["runs"], odd))
    if named := sorted(odd if is_strict else odd.keys() & set(wanted)):
        raise Unreadable(f"run {named[0]} cannot be read: {odd[named[0]]}")
    for run_id, why in odd.items():
        _log.warning("run %s is skipped, because it cannot be read: %s", run_id, why, extra={"run_id": run_id})
    kept: dict[str, Any] = {name: [pair for pair in pairs if pair[0] not in odd] for name, pairs in read.items()}
    kept["runs"] = [run for run in runs if run.id not in odd]
    with readable("the data of this operation"):
        others = {name: msgspec.Raw(text.encode()) for name, text in parts.items() if name not in kept}
        rest = _decode_loaded(msgspec.json.encode({**others, **{name: [] for name in kept}}))
    return msgspec.structs.replace(rest, **kept)


_PAIRS: dict[str, Any] = {"waits": Wait, "arrivals": Arrival, "entries": Entry, "histories": list[Entry]}
"""The parts of a document that are pairs of a run's id and a value, with the type of the value."""


def _readable_runs(runs: str, odd: dict[str, str]) -> Iterator[Run]:
    for text in items(runs):
        try:
            yield _decode_run(text)
        except FAILURES as error:
            odd[_decode_id(members(text)["id"])] = reason_of(error)


def _readable_pairs(pairs: str, kind: Any, odd: dict[str, str]) -> Iterator[tuple[str, Any]]:
    for run_id, text in map(items, items(pairs)):
        try:
            yield _decode_id(run_id), msgspec.json.decode(text, type=kind)
        except FAILURES as error:
            odd[_decode_id(run_id)] = reason_of(error)
