"""Checkpoints: most take one round trip, because the store remembers the run. The shared operations decide the others.

`stores.held` computes the next state from the run that is remembered, and the server writes it if the run is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core import audit
from holdfast.core.checkpoint import Checkpoint, Suspend, Verdict, Verdicts
from holdfast.core.clock import Micros
from holdfast.core.model import Arrival, Entry, Run, Wait
from holdfast.core.news import News
from holdfast.stores.held import Held, Plain, plain, reached_by
from holdfast.stores.operations import checkpoints as model
from holdfast.stores.postgres import unreadable
from holdfast.stores.postgres.scripts import Calls, Script
from holdfast.stores.postgres.unit_of_work import TRANSACTION, Bounds, decide
from holdfast.stores.postgres.unreadable import members
from holdfast.stores.workspace.reads import for_checkpoints
from holdfast.stores.workspace.row_unit import RowUnit

encode = msgspec.json.encode

_RELEASED = ("state", "ready_at", "crashes", "suspended_at", "rollback", "result", "error")
"""Fields that `checkpoint_v1` writes when a run is released. All others stay, or follow from the release."""


def _kind(one: Plain) -> str:
    """Return the kind of check that the server makes before it writes."""
    if one.ends:
        return "end"
    if isinstance(one.checkpoint.next, Suspend):
        return "sleep"
    return "keep" if one.is_held else "move"


def _move(one: Plain, number: int, now: Micros) -> dict[str, Any] | None:
    """Return all changes but the entries, for the `number`-th run of a batch. None if there are no others."""
    checkpoint = one.checkpoint
    move: dict[str, Any] = {}
    if checkpoint.consumed:
        move["consumed"] = checkpoint.consumed
    if one.ends:
        if checkpoint.waits is not None or one.waits != ():
            move["waits"] = ()
    elif checkpoint.waits is not None:
        move["waits"] = checkpoint.waits
    if checkpoint.values:
        move["values"] = checkpoint.values
    if not one.is_held:
        move |= _moved(one.before, one.after, now)
    return {"n": number, **move} if move else None


def _moved(before: Run, after: Run, now: Micros) -> dict[str, Any]:
    """Return the new fields of a run that is released, and the audit fact of its move."""
    moved = {name: value for name in _RELEASED if (value := getattr(after, name)) is not None}
    fact = audit.of_move(before, after, now)
    return moved if fact is None else {**moved, "event": fact.event, "data": fact.data or None}


class _Said(msgspec.Struct):
    """The server's answer about one run."""

    what: Literal["written", "lost", "applied", "other"] = msgspec.field(name="is")
    seen: int = 0
    arrivals: tuple[Arrival, ...] = ()


class _Answer(msgspec.Struct):
    """The answer to a batch. Without verdicts, everything is written and no run has newer arrivals."""

    now: Micros
    verdicts: list[_Said] | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_said = msgspec.json.Decoder(_Said).decode


def _decode(text: str) -> _Answer:
    try:
        return _decode_answer(text)
    except unreadable.FAILURES:
        parts = members(text)
        # A run whose inbox cannot be decoded counts as lost, and the next claim blocks it.
        return _Answer(int(parts["now"]), unreadable.each(parts["verdicts"], _decode_said, lambda *_: _Said("lost")))


class AlreadySettled(Exception):
    """Another attempt has already settled the entry that was to be written."""

    error = None

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.location)
        self.entry = entry


class Writing:
    """The write of one batch. `now` is the time as this process knows it. `at` is None if the server's clock counts."""

    def __init__(self, calls: Calls, held: Held, *, at: Micros | None, now: Micros) -> None:
        self._calls = calls
        self._held = held
        self._at = at
        self._now = now
        self._verdicts: dict[int, Verdict] = {}
        self.news = News()

    def write(self, batch: Sequence[Checkpoint]) -> Script[Verdicts]:
        """Write as many checkpoints as possible in one round trip, and the others in a transaction."""
        if plains := self._plains(batch):
            yield from self._write_plain(plains)
        left = [place for place in range(len(batch)) if place not in self._verdicts]
        if left:
            told = yield from self.decide([batch[place] for place in left])
            self._verdicts.update(zip(left, told.verdicts, strict=True))
        return Verdicts(verdicts=tuple(self._verdicts[place] for place in range(len(batch))), now=self._now)

    def decide(
        self, batch: Sequence[Checkpoint], bounds: Bounds = TRANSACTION, *, settling: str | None = None
    ) -> Script[Verdicts]:
        """Write a batch by the shared operations.

        Raises:
            AlreadySettled: Another attempt has settled the location `settling`.

        """
        reads = for_checkpoints(batch, [self._held.run(one.run_id, one.token) for one in batch])
        kept: list[tuple[Run, tuple[Wait, ...]]] = []

        def operation(unit: RowUnit, now: Micros) -> Verdicts:
            if settling is not None:
                known = unit.histories.entry(batch[0].run_id, settling)
                if known is not None and known.is_settled:
                    raise AlreadySettled(known)
            answer = model.write(unit, batch, now)
            records = [unit.rows.records[verdict.run_id] for verdict in answer.verdicts if verdict.is_held]
            kept[:] = [(record.run, record.waits) for record in records]
            return answer

        told, news = yield from decide(self._calls, reads, operation, self._at, bounds)
        self.news.add(news)
        self._now = told.now
        for verdict in told.verdicts:
            self._held.forget(verdict.run_id)
        for run, waits in kept:
            self._held.keep(replace(run, payload=""), waits)
        if worn := [one.run_id for one in batch if one.beat and one.beat % audit.TRIM_EVERY == 0]:
            yield self._calls.trim, (encode(worn).decode(),)
        return told

    def _plains(self, batch: Sequence[Checkpoint]) -> dict[int, Plain]:
        """Return the checkpoints that take one round trip, by their places in the batch."""
        found = ((place, plain(one, self._held, self._now)) for place, one in enumerate(batch))
        plains = {place: one for place, one in found if one is not None}
        if len(plains) == len(batch):
            return plains
        reached = reached_by(self._held, [one for place, one in enumerate(batch) if place not in plains])
        return {place: one for place, one in plains.items() if one.before.id not in reached}

    def _write_plain(self, plains: dict[int, Plain]) -> Script[None]:
        """Write checkpoints in one round trip. Those with an unusual answer get no verdict here."""
        batch = list(plains.values())
        numbered = list(enumerate(batch, start=1))
        gained = _numbered_entries(numbered)
        moves = [_move(one, number, self._now) for number, one in numbered]
        moved = [move for move in moves if move is not None]
        runs = [
            (one.checkpoint.run_id, one.checkpoint.token, one.checkpoint.seen, "hold" if move is None else _kind(one))
            for one, move in zip(batch, moves, strict=True)
        ]
        rest = gained, encode(moved).decode() if moved else None, self._at
        if len(runs) == 1:
            said = _decode((yield self._calls.checkpoint_one, (*runs[0], *rest)))
        else:
            said = _decode((yield self._calls.checkpoint, (*map(array_of, zip(*runs, strict=True)), *rest)))
        self._now = said.now
        for index, (place, one) in enumerate(plains.items()):
            told = said.verdicts[index] if said.verdicts is not None else _Said("written", one.checkpoint.seen)
            verdict = _verdict(one, told)
            if verdict is not None:
                self._verdicts[place] = verdict
                self._remember(one, told)
                self._tell(one, told)

    def _remember(self, one: Plain, said: _Said) -> None:
        if said.what == "written" and one.is_held:
            run = one.before if said.seen == one.before.arrivals else replace(one.before, arrivals=said.seen)
            self._held.keep(run, one.waits)
        else:
            self._held.forget(one.checkpoint.run_id)

    def _tell(self, one: Plain, said: _Said) -> None:
        if said.what != "written" or one.is_held:
            return
        if one.ends:
            self.news.ended.add(one.after.id)
        elif one.after.ready_at is not None and one.after.ready_at <= self._now:
            self.news.ready.add(one.after.type)


def _numbered_entries(batch: Sequence[tuple[int, Plain]]) -> str | None:
    """Return the entries of a batch as JSON, each with the number of its run."""
    entries = [b'{"n":%d,' % n + encode(entry)[1:] for n, one in batch for entry in one.checkpoint.entries]
    return f"[{b','.join(entries).decode()}]" if entries else None


def array_of(values: Iterable[str | int]) -> str:
    """Return an array literal. Passing a list instead takes the driver ten times as long."""
    return "{" + ",".join([str(one) if type(one) is int else _quoted(str(one)) for one in values]) + "}"


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _verdict(one: Plain, said: _Said) -> Verdict | None:
    run_id = one.checkpoint.run_id
    match said.what:
        case "other" | "applied":  # not written, or by an earlier attempt: the run's state has to be looked up
            return None
        case "lost":
            return Verdict(run_id=run_id, is_lost=True, is_held=False)
        case "written" if one.is_held:
            return Verdict(run_id=run_id, arrivals=said.arrivals, seen=said.seen)
        case "written":
            return Verdict(run_id=run_id, is_held=False, state=one.after.state)
