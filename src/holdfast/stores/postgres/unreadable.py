"""Rows that cannot be decoded: read field by field, blocked where a claim comes to them, passed over where one may.

Statements read rows as JSON, which is decoded as the values that they are. Where that fails for one of them, each is
decoded by itself here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from holdfast.core.checkpoint import Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.errors import Unreadable
from holdfast.core.model import Arrival, Entry, Lease, Run, Wait
from holdfast.core.ports import Details
from holdfast.core.unreadable import joined, reason_of, salvaged
from holdfast.stores.postgres.calls import Calls
from holdfast.stores.postgres.talks import Talk
from holdfast.stores.postgres.working import Loaded

FAILURES = (msgspec.MsgspecError, RecursionError)
"""What is raised for a row that cannot be decoded."""

_T = TypeVar("_T")

_log = logging.getLogger("holdfast.store")


class _Id(msgspec.Struct):
    id: str


class _Named(msgspec.Struct):
    run: _Id


class _RunId(msgspec.Struct):
    run_id: str


class _RawVerdicts(msgspec.Struct):
    verdicts: list[msgspec.Raw]
    now: Micros


class _RawDetails(msgspec.Struct):
    run: dict[str, msgspec.Raw]
    waits: msgspec.Raw
    values: dict[str, str]


_decode_details = msgspec.json.Decoder(_RawDetails).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_pairs = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]]).decode
_decode_run = msgspec.json.Decoder(Run).decode
_decode_waits = msgspec.json.Decoder(tuple[Wait, ...]).decode
_decode_lease = msgspec.json.Decoder(Lease).decode
_decode_ids = msgspec.json.Decoder(list[str]).decode
_decode_run_id = msgspec.json.Decoder(_RunId).decode
_decode_verdict = msgspec.json.Decoder(Verdict).decode
_decode_verdicts = msgspec.json.Decoder(_RawVerdicts).decode
_decode_id = msgspec.json.Decoder(_Id).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_loaded = msgspec.json.Decoder(Loaded).decode


# Reading


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Tell of rows that cannot be decoded as such."""
    try:
        yield
    except FAILURES as error:
        raise Unreadable(f"{what} cannot be read: {reason_of(error)}") from error


def details(text: str) -> Details:
    """A run with what of it can be decoded, from the JSON of `Details`."""
    raw = _decode_details(text)
    run, why = salvaged(raw.run)
    try:
        return Details(run=run, waits=_decode_waits(raw.waits), values=raw.values, unreadable=why or None)
    except FAILURES as error:
        return Details(run=run, values=raw.values, unreadable=joined([why, f"waits: {reason_of(error)}"]))


def run_of(text: str | msgspec.Raw) -> Run:
    """A run with what of it can be decoded, from its JSON."""
    return salvaged(_decode_fields(text))[0]


def verdicts(text: str | msgspec.Raw) -> Verdicts:
    """What is told of held runs. One whose inbox cannot be read is lost: whoever claims it next blocks it."""
    raw = _decode_verdicts(text)
    return Verdicts(verdicts=tuple(map(_verdict, raw.verdicts)), now=raw.now)


def _verdict(raw: msgspec.Raw) -> Verdict:
    try:
        return _decode_verdict(raw)
    except FAILURES:
        return Verdict(run_id=_decode_run_id(raw).run_id, is_lost=True, is_held=False)


# Claiming


def blocking(
    calls: Calls, types: tuple[str, ...], count: int, at: Micros | None, talk: Callable[[], Talk[_T]]
) -> Talk[_T]:
    """Do something with due runs; if one of them cannot be read, block those that cannot, and do it again."""
    try:
        return (yield from talk())
    except (Unreadable, *FAILURES) as error:
        trouble = error
    due = _decode_ids((yield calls.due_ids, (msgspec.json.encode(types).decode(), count, at)))
    blocked = 0
    for run_id in due:
        if (why := _flaw((yield calls.lease, (run_id,)))) is not None:
            blocked += (yield calls.block_unreadable, (run_id, None, why, at)) == "true"
    if not blocked:
        raise trouble
    return (yield from talk())


def _flaw(lease: str) -> str | None:
    """Why a run cannot be read by the worker that would claim it."""
    try:
        _decode_lease(lease)
    except FAILURES as error:
        return reason_of(error)
    return None


def read_leases(calls: Calls, worker: str, leases: tuple[msgspec.Raw, ...], at: Micros | None) -> Talk[list[Lease]]:
    """Those of the runs that a worker has claimed which can be read; the others are blocked."""
    read: list[Lease] = []
    for raw in leases:
        try:
            read.append(_decode_lease(raw))
        except FAILURES as error:
            yield calls.block_unreadable, (_decode_named(raw).run.id, worker, reason_of(error), at)
    return read


# Deciding


def loaded(document: str, wanted: Collection[str], *, is_strict: bool) -> Loaded:
    """What an operation is about. A run that cannot be read is left out, unless the operation named it.

    So an event reaches everybody else who waits for it. `is_strict`: none is left out.
    """
    try:
        return _decode_loaded(document)
    except FAILURES:
        parts = _decode_fields(document)
    odd: dict[str, str] = {}
    read = {name: list(_readable_pairs(parts[name], kind, odd)) for name, kind in _PAIRS.items() if name in parts}
    runs = list(_readable_runs(parts["runs"], odd))
    if named := sorted(odd if is_strict else odd.keys() & set(wanted)):
        raise Unreadable(f"run {named[0]} cannot be read: {odd[named[0]]}")
    for run_id, why in odd.items():
        _log.warning("run %s is passed over, because it cannot be read: %s", run_id, why, extra={"run_id": run_id})
    kept: dict[str, Any] = {name: [pair for pair in pairs if pair[0] not in odd] for name, pairs in read.items()}
    kept["runs"] = [run for run in runs if run.id not in odd]
    with readable("what this is about"):
        rest = _decode_loaded(msgspec.json.encode({**parts, **{name: [] for name in kept}}))
    return msgspec.structs.replace(rest, **kept)


_PAIRS: dict[str, Any] = {"waits": Wait, "arrivals": Arrival, "entries": Entry, "histories": list[Entry]}
"""What belongs to a run, by its id."""


def _readable_runs(raw: msgspec.Raw, odd: dict[str, str]) -> Iterator[Run]:
    for one in _decode_list(raw):
        try:
            yield _decode_run(one)
        except FAILURES as error:
            odd[_decode_id(one).id] = reason_of(error)


def _readable_pairs(raw: msgspec.Raw, kind: Any, odd: dict[str, str]) -> Iterator[tuple[str, Any]]:
    for run_id, one in _decode_pairs(raw):
        try:
            yield run_id, msgspec.json.decode(one, type=kind)
        except FAILURES as error:
            odd[run_id] = reason_of(error)
