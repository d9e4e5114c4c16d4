"""Rows that cannot be decoded: reads mark them, claims block the run, and operations skip it if they may.

Statements return rows as JSON, and the store decodes a whole answer at once. If that fails, this module decodes each
row by itself.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.core import wire
from holdfast.core.checkpoint import Verdict, Verdicts
from holdfast.core.errors import Unreadable
from holdfast.core.model import Arrival, Entry, Lease, Run, Wait
from holdfast.core.wire import reason_of
from holdfast.stores.workspace.reads import DueRead, Reads, RunRead
from holdfast.stores.workspace.rows import Loaded

FAILURES = (msgspec.MsgspecError, RecursionError)
"""Errors that the decoder raises for a row that cannot be decoded."""

_T = TypeVar("_T")

_log = logging.getLogger("holdfast.store")

_decode_lease = msgspec.json.Decoder(Lease).decode
_decode_id = msgspec.json.Decoder(str).decode
_decode_verdict = msgspec.json.Decoder(Verdict).decode
_decode_loaded = msgspec.json.Decoder(Loaded).decode


class UnreadableRun(Unreadable):
    """Raised when a run that an operation needs cannot be decoded."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"run {run_id} cannot be read: {why}")
        self.run_id = run_id
        self.why = why


readable = partial(wire.readable, failures=FAILURES)


def marked(text: str) -> tuple[Run, str]:
    """Decode the JSON of a run with placeholders for what cannot be decoded, and return why it cannot."""
    return wire.marked({name: msgspec.Raw(value.encode()) for name, value in members(text).items()})


def each(texts: str, decode: Callable[[str], _T], otherwise: Callable[[str, str], _T]) -> list[_T]:
    """Decode the items of a list. `otherwise` makes a value of an item that cannot be decoded, and the reason."""

    def decoded(text: str) -> _T:
        try:
            return decode(text)
        except FAILURES as error:
            return otherwise(text, reason_of(error))

    return list(map(decoded, items(texts)))


def verdicts(text: str) -> Verdicts:
    """Decode verdicts one by one. A run whose inbox cannot be decoded counts as lost, and the next claim blocks it."""
    parts = members(text)
    return Verdicts(verdicts=tuple(each(parts["verdicts"], _decode_verdict, _lost)), now=int(parts["now"]))


def _lost(text: str, _: str) -> Verdict:
    return Verdict(run_id=_decode_id(members(text)["run_id"]), is_lost=True, is_held=False)


def leases_in(texts: str) -> list[Lease | UnreadableRun]:
    """Decode leases one by one, with errors in place of those that cannot be decoded."""
    return each(texts, _decode_lease, _unread)


def _unread(lease: str, why: str) -> Lease | UnreadableRun:
    return UnreadableRun(_decode_id(members(members(lease)["run"])["id"]), why)


def loaded(document: str, reads: Reads) -> Loaded:
    """Decode a loaded document. A run that cannot be decoded is left out, so that an event reaches all other runs.

    Raises:
        UnreadableRun: The operation names such a run in its reads, or it is a claim, which blocks the run.

    """
    try:
        return _decode_loaded(document)
    except FAILURES:
        parts = members(document)
    odd: dict[str, str] = {}
    rows = {name: [_row(text, kind, odd) for text in items(parts.pop(name, ""))] for name, kind in _ROWS.items()}
    for run_id, why in sorted(odd.items()):
        if RunRead(run_id) in reads or reads.of(DueRead):
            raise UnreadableRun(run_id, why)
        _log.warning("run %s is skipped, because it cannot be read: %s", run_id, why, extra={"run_id": run_id})
    others = {name: msgspec.Raw(text.encode()) for name, text in parts.items()}
    with readable("the data of this operation"):
        rest = _decode_loaded(msgspec.json.encode({**others, **{name: [] for name in rows}}))
    kept = {name: [value for run_id, value in pairs if run_id not in odd] for name, pairs in rows.items()}
    return msgspec.structs.replace(rest, **kept)


_ROWS: dict[str, Any] = {
    "runs": Run,
    "waits": tuple[str, Wait],
    "arrivals": tuple[str, Arrival],
    "entries": tuple[str, Entry],
    "histories": tuple[str, list[Entry]],
}
"""The parts of a document that are rows of runs, with the types of their items."""


def _row(text: str, kind: Any, odd: dict[str, str]) -> tuple[str, Any]:
    """Return the id of a run and a row of it. A run whose row cannot be decoded is added to `odd`."""
    run_id = _decode_id(members(text)["id"] if kind is Run else items(text)[0])
    try:
        return run_id, msgspec.json.decode(text, type=kind)
    except FAILURES as error:
        odd[run_id] = reason_of(error)
        return run_id, None


# The parts of a JSON text, split by brackets and commas alone, so that an invalid part does not hide the others
#
# A decoder validates every part, even those that it returns undecoded. So it refuses a whole text because of half a
# surrogate pair, or too many nested brackets, in one row.

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
_MEMBER = re.compile(r'\s*("(?:[^"\\]|\\.)*")\s*:(.*)', re.DOTALL)


def items(text: str) -> list[str]:
    """Return the texts of a list's items; none if the text is `null`."""
    return list(_parts(text))


def members(text: str) -> dict[str, str]:
    """Return the texts of an object's values, by name."""
    found = (_MEMBER.fullmatch(part) for part in _parts(text))
    return {msgspec.json.decode(member[1], type=str): member[2].strip() for member in found if member is not None}


def _parts(text: str) -> Iterator[str]:
    depth = start = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "[" | "{":
                depth += 1
                if depth == 1:
                    start = token.end()
            case "]" | "}":
                depth -= 1
                if depth == 0:
                    if last := text[start : token.start()].strip():
                        yield last
                    return
            case "," if depth == 1:
                yield text[start : token.start()].strip()
                start = token.end()
            case _:
                pass
